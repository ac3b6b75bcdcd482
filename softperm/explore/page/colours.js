// Colours that colour-blind people can tell apart, in light and dark.

/** Okabe and Ito's palette for categories, darkened where it would be too pale. */
const CATEGORIES = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167],
  [86, 180, 233], [213, 94, 0], [150, 140, 20], [117, 107, 177],
];
const UNKNOWN = [150, 150, 150];

/** Cividis, which looks the same to people with and without red-green blindness. */
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];

export function categoryColour(code, count) {
  return code < count ? CATEGORIES[code % CATEGORIES.length] : UNKNOWN;
}

/** The colour of a number between 0 and 1. */
export function rampColour(t) {
  if (Number.isNaN(t)) return UNKNOWN;
  const at = Math.max(0, Math.min(1, t)) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return CIVIDIS[low].map((c, i) => Math.round(c + (at - low) * (CIVIDIS[low + 1][i] - c)));
}

/** Whether the page is dark: the system's choice, or the button's. */
export function isDark() {
  return getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
}

/** The colour of a number between 0 and 1 on the map: none is as dark as a dark page. */
export function dotColour(t) {
  return rampColour(isDark() ? 0.3 + 0.7 * t : t);
}

export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

/** The colour of a latent vertex: hues far apart, in two lightnesses. */
export function latentColour(p) {
  const hue = (p * 137.508 + 250) % 360;
  return `oklch(${p % 2 ? 0.78 : 0.58} ${p % 2 ? 0.12 : 0.15} ${hue.toFixed(1)})`;
}

/** The colour of an assignment: grey if it is uniform, the latent vertex's own if it is certain. */
export function assignmentColour(p, strength) {
  return `color-mix(in oklab, ${latentColour(p)} ${(100 * strength).toFixed(1)}%, var(--uniform))`;
}

/** The strongest latent vertex of a row of D, and its strength: 0 if the row is uniform. */
export function strongest(row) {
  let best = 0;
  let total = 0;
  for (let p = 0; p < row.length; p++) {
    total += row[p];
    if (row[p] > row[best]) best = p;
  }
  const even = 1 / row.length;
  const share = total > 0 ? row[best] / total : even;
  return { latent: best, strength: row.length > 1 ? Math.max(0, (share - even) / (1 - even)) : 1 };
}

/** The colour of a contribution between -1 and 1: orange against, blue in favour. */
export function contributionColour(t) {
  const end = t >= 0 ? "var(--favour)" : "var(--against)";
  return `color-mix(in oklab, ${end} ${(100 * Math.min(1, Math.abs(t))).toFixed(1)}%, var(--uniform))`;
}

/** The colour of each graph on the map by a column, and what the legend says. */
export function columnColours(column) {
  const { values, categories } = column;
  const colours = new Uint8Array(3 * values.length);
  if (categories) {
    for (let i = 0; i < values.length; i++) {
      colours.set(categoryColour(values[i], categories.length), 3 * i);
    }
    return { colours, range: null };
  }
  const [low, high] = typicalRange(values);
  const steps = Array.from({ length: 256 }, (_, k) => dotColour(k / 255));
  for (let i = 0; i < values.length; i++) {
    const step = Math.round((255 * (values[i] - low)) / (high - low || 1));
    colours.set(Number.isNaN(step) ? UNKNOWN : steps[Math.max(0, Math.min(255, step))], 3 * i);
  }
  return { colours, range: [low, high] };
}

/** The range of most values: a few extreme ones do not hide the others. */
function typicalRange(values) {
  const step = Math.max(1, Math.floor(values.length / 20000));
  const sample = values.filter((value, i) => i % step === 0 && !Number.isNaN(value)).sort();
  if (!sample.length) return [0, 1];
  const last = sample.length - 1;
  return [sample[Math.floor(0.005 * last)], sample[Math.ceil(0.995 * last)]];
}
