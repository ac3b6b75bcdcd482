// The panel of latent vertices: which vertices of all graphs are assigned to each.

import { thumbnail } from "./drawing.js";
import { latentColour } from "./colours.js";
import { h, percent } from "./elements.js";

const TELLING = 1.25; // times more frequent than overall

/** Shows latent vertex p. */
export function showLatent(panel, collection, p, actions) {
  const { latents, labels } = collection.about;
  const latent = latents[p];
  const choices = latents.map((_, q) =>
    h(
      "button",
      { class: "chip", "aria-pressed": String(q === p), "aria-label": `Latent vertex ${q}`, onclick: () => actions.latent(q) },
      h("span", { class: "swatch", style: { background: latentColour(q) } }),
      String(q),
    ),
  );
  const examples = latent.examples.map((example) => {
    const name = collection.name(example.graph);
    return h(
      "li",
      {},
      h(
        "button",
        { class: "neighbour", onclick: () => actions.open(example.graph), title: name },
        thumbnail(collection, example.graph, example.vertex),
        h("span", { class: "name" }, name),
        h("span", { class: "muted" }, `vertex ${example.vertex} · ${percent(example.strength)}`),
      ),
    );
  });
  panel.replaceChildren(
    h("div", { class: "chips", role: "group", "aria-label": "Latent vertices" }, choices),
    h("h2", {}, `Latent vertex ${p}`),
    h("p", { id: "latent-meaning" }, meaning(p, latent)),
    ...(labels.length ? [shares("Labels", latent.labels)] : []),
    shares("Degrees", latent.degrees),
    shares("Vertices with their neighbours", latent.neighbourhoods),
    h("h3", {}, "Assigned most strongly"),
    h("ol", { class: "neighbours" }, examples),
  );
}

/** What a latent vertex stands for, in a sentence. */
function meaning(p, latent) {
  const start = `Latent vertex ${p} receives ${percent(latent.mass)} of all assignments; it is the strongest for ${percent(latent.vertices)} of all vertices. `;
  if (!latent.vertices) return `${start}It stands for no vertex: each is assigned to another one more strongly.`;
  const telling = (list) => list.filter((share) => share.here > TELLING * share.overall && share.here > 0.05);
  const parts = [];
  for (const [word, list] of [["with label", latent.labels], ["of degree", latent.degrees], ["such as", latent.neighbourhoods]]) {
    const names = telling(list).slice(0, 2);
    if (names.length) {
      parts.push(`${word} ${names.map((s) => `${s.name} (${percent(s.here)} here, ${percent(s.overall)} overall)`).join(" and ")}`);
    }
  }
  if (!parts.length) {
    return `${start}Its vertices are much like all others: this latent vertex does not tell vertices apart.`;
  }
  return `${start}It stands for vertices ${parts.join("; ")}.`;
}

function shares(title, list) {
  const row = (share) =>
    h(
      "div",
      { class: "bar-row" },
      h("span", { class: "bar-name", title: share.name }, share.name),
      h(
        "span",
        { class: "bar" },
        h("span", { style: { width: `${100 * share.here}%` } }),
        h("i", { class: "overall", style: { left: `${100 * share.overall}%` } }),
      ),
      h("span", { class: "bar-value" }, percent(share.here)),
    );
  return h("section", { "aria-label": title }, h("h3", {}, title, h("small", {}, " share here; the line is that of all vertices")), list.map(row));
}
