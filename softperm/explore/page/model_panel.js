// The panel of the model: confusion matrix, sharpness, training curve.

import { h, percent, short, svg } from "./elements.js";

/** Shows the model; `filterCell(target, prediction)` restricts the map to a cell. */
export function showModel(panel, collection, filterCell) {
  const { facts, curve, metric } = collection.about;
  panel.replaceChildren(
    ...confusion(collection, filterCell),
    h("h2", {}, "Scores and sharpness"),
    h("dl", { class: "values wide" }, Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("p", { class: "note" }, "A row entropy near 1 means that every vertex is assigned to all latent vertices alike; the aligned matrices then say little more than how many edges a graph has."),
    ...(curve.length ? [h("h2", {}, "Training curve"), curveFigure(curve, metric)] : []),
  );
}

function confusion(collection, filterCell) {
  const target = collection.columns.find((column) => column.role === "target" && column.categories);
  const predicted = collection.columns.find((column) => column.role === "prediction" && column.categories);
  if (!target || !predicted) return [];
  const k = predicted.categories.length;
  const counts = Array.from({ length: k }, () => new Uint32Array(k));
  target.values.forEach((code, i) => code < k && counts[code][predicted.values[i]]++);
  const totals = counts.map((row) => row.reduce((a, b) => a + b, 0) || 1);
  const cells = (t) =>
    Array.from(counts[t], (count, p) => {
      const share = count / totals[t];
      const words = `${target.categories[t]} predicted as ${predicted.categories[p]}: ${count}`;
      const tint = `color-mix(in oklab, ${t === p ? "var(--favour)" : "var(--against)"} ${(70 * share).toFixed(1)}%, var(--paper))`;
      return h("td", {}, h("button", { class: "cell", "aria-label": words, title: words, style: { background: tint }, onclick: () => filterCell(target, t, predicted, p) }, h("b", {}, count.toLocaleString("en")), h("small", {}, percent(share))));
    });
  const table = h(
    "table",
    { class: "confusion" },
    h("thead", {}, h("tr", {}, h("td", {}), predicted.categories.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, target.categories.map((name, t) => h("tr", {}, h("th", { scope: "row" }, name), cells(t)))),
  );
  const note = h("p", { class: "note" }, "Rows are classes, columns predictions. A cell restricts the map to its graphs. Training graphs are included, so the score is better than on new graphs.");
  return [h("h2", {}, "Confusion matrix"), h("div", { class: "scroll" }, table), note];
}

function curveFigure(curve, metric) {
  const lines = [
    ["train_loss", "training loss", "var(--line-a)", ""],
    ["validation_loss", "validation loss", "var(--line-b)", "5 3"],
  ].filter(([key]) => curve.some((row) => row[key] != null));
  const figures = [plot(curve, lines, "Loss over the epochs")];
  if (curve.some((row) => row.validation_score != null)) {
    figures.push(plot(curve, [["validation_score", `validation ${metric}`, "var(--line-c)", ""]], `Validation ${metric} over the epochs`));
  }
  return h("div", { class: "pair", id: "curve" }, figures);
}

function plot(curve, lines, title) {
  const [width, height, left, bottom] = [240, 150, 38, 20];
  const values = lines.flatMap(([key]) => curve.map((row) => row[key]).filter((value) => value != null));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const last = Math.max(2, curve.length);
  const x = (i) => left + ((width - left - 6) * i) / (last - 1);
  const y = (value) => height - bottom - ((height - bottom - 10) * (value - low)) / (high - low || 1);
  const drawn = lines.map(([key, , colour, dash]) => {
    const points = curve.map((row, i) => (row[key] == null ? null : `${x(i).toFixed(1)},${y(row[key]).toFixed(1)}`)).filter(Boolean);
    return svg("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-dasharray": dash });
  });
  const text = (at, words, anchor) => svg("text", { x: at[0], y: at[1], "text-anchor": anchor, class: "axis-text" }, words);
  const axis = svg("path", { d: `M${left} 8V${height - bottom}H${width - 4}`, class: "axis" });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, from ${short(values[0])} to ${short(values[values.length - 1])}` },
    axis, drawn,
    text([left - 4, 14], short(high), "end"), text([left - 4, height - bottom], short(low), "end"),
    text([left, height - 6], "1", "middle"), text([width - 6, height - 6], `epoch ${curve.length}`, "end"),
  );
  const legend = lines.map(([, name, colour]) => h("span", {}, h("span", { class: "swatch", style: { background: colour } }), ` ${name} `));
  return h("figure", {}, picture, h("figcaption", { class: "note" }, legend));
}
