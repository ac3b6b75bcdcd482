// The panel of one graph: prediction, drawing, soft permutation, neighbours.

import { css, categoryColour, latentColour, strongest } from "./colours.js";
import { assignmentPaint, drawGraph, explanationPaint, thumbnail } from "./drawing.js";
import { h, percent, plural, short, show } from "./elements.js";
import { heatMap } from "./heatmap.js";

const SHOWN = 6; // outputs listed before "all"

/** Fills the panel with a graph; `actions` are open(i), compare(i), latent(p). */
export function showGraph(panel, collection, graph, view, actions) {
  const { about } = collection;
  view.output = view.chosenOutput ?? likeliest(graph.outputs);
  show(
    panel,
    header(collection, graph),
    outputBars(collection, graph),
    drawingFigure(collection, graph, view, actions),
    h(
      "div",
      { class: "pair" },
      heatMap(graph.permutation, graph.size, graph.latent, { title: "D", row: "vertex", column: "latent vertex" }, [0, about.scale]),
      heatMap(graph.aligned(), graph.latent, graph.latent, { title: "DᵀAD", row: "latent", column: "latent" }),
    ),
    h("p", { class: "note" }, precision(about)),
    neighbourLists(collection, graph, actions),
  );
}

/** What the page says of a graph of which it stores only the place on the map. */
export function showMissing(panel, collection, i) {
  panel.replaceChildren(
    h("h2", {}, collection.name(i)),
    valueList(collection, i),
    h("p", { class: "note" }, collection.about.missing),
  );
}

function header(collection, graph) {
  const sizes = `${plural(graph.size, "vertex", "vertices")}, ${plural(graph.edges.length, "edge")}`;
  const values = graph.index >= 0 ? valueList(collection, graph.index) : null;
  return h("div", { class: "graph-head" }, h("h2", { id: "graph-title" }, graph.name), h("p", { class: "muted" }, sizes), values);
}

function valueList(collection, i) {
  const rows = collection.columns
    .filter((column) => column.role !== "measure" || column.name === "row entropy")
    .map((column) => {
      const value = collection.value(column, i);
      const text = column.categories ? value : short(value);
      const shown = column.role === "error" && value === "wrong" ? h("strong", { class: "wrong" }, text) : text;
      return h("div", {}, h("dt", {}, column.name), h("dd", {}, shown));
    });
  return h("dl", { class: "values" }, rows);
}

function outputBars(collection, graph) {
  const { outputs } = collection.about;
  if (outputs.kind === "numbers") {
    if (graph.index >= 0) return null;
    return h("dl", { class: "values" }, outputs.names.map((name, c) => h("div", {}, h("dt", {}, name), h("dd", {}, short(graph.outputs[c])))));
  }
  const order = [...outputs.names.keys()].sort((a, b) => graph.outputs[b] - graph.outputs[a]);
  const bars = order.slice(0, SHOWN).map((c) =>
    h(
      "div",
      { class: "bar-row" },
      h("span", { class: "bar-name" }, outputs.names[c]),
      h("span", { class: "bar" }, h("span", { style: { width: `${100 * graph.outputs[c]}%`, background: css(categoryColour(c, outputs.names.length)) } })),
      h("span", { class: "bar-value" }, percent(graph.outputs[c])),
    ),
  );
  const more = order.length > SHOWN ? h("p", { class: "note" }, `and ${order.length - SHOWN} less likely`) : null;
  return h("section", { "aria-label": "Probabilities", id: "probabilities" }, bars, more);
}

function drawingFigure(collection, graph, view, actions) {
  const { labels, outputs, explains } = collection.about;
  const holder = h("div", { class: "drawing-holder" });
  const caption = h("p", { class: "note", id: "drawing-note" });
  const redraw = () => {
    const explained = view.explaining && graph.explanation;
    const paint = explained
      ? explanationPaint(graph, labels, view.output, outputs.names.length)
      : assignmentPaint(graph, labels);
    const title = `${graph.name}: ${explained ? "contributions" : "assignments to latent vertices"}`;
    holder.replaceChildren(drawGraph(graph, labels, paint, { title, onvertex: (u) => actions.latent(strongest(graph.row(u)).latent) }));
    caption.replaceChildren(...(explained ? explanationNote(collection.about, view) : [assignmentLegend(graph, actions)]));
  };
  const toggle = h("input", {
    type: "checkbox",
    id: "explain",
    checked: view.explaining && graph.explanation != null,
    disabled: graph.explanation == null && !actions.explain,
    onchange: async (event) => {
      view.explaining = event.target.checked;
      try {
        if (view.explaining && !graph.explanation) await actions.explain(graph);
        redraw();
      } catch (error) {
        toggle.checked = view.explaining = false;
        absent.textContent = error.message;
      }
    },
  });
  const choice = h(
    "select",
    { "aria-label": "Explained output", id: "explained-output", onchange: (event) => { view.output = view.chosenOutput = Number(event.target.value); redraw(); } },
    outputs.names.map((name, c) => h("option", { value: c, selected: c === view.output }, name)),
  );
  const absent = h("span", { class: "muted", id: "not-explained", role: "status" });
  if (!explains) absent.textContent = "trees alone predict; they have no contributions";
  else if (!graph.explanation && !actions.explain) absent.textContent = "not stored for this graph; --serve explains any";
  redraw();
  return h("section", { "aria-label": "Drawing" }, h("div", { class: "tools" }, h("label", {}, toggle, " Explanation of"), choice, absent), holder, caption);
}

function explanationNote({ outputs, explains }, view) {
  const what = outputs.kind === "numbers" ? "the prediction of" : "the score of";
  return [
    h("span", { class: "swatch favour" }), ` raises ${what} ${outputs.names[view.output]} `,
    h("span", { class: "swatch against" }), " lowers it. Contributions of vertices add up to the difference from the same graph with features of zero; edges share those of their vertices. ",
    h("span", { id: "explains" }, `Explained: ${explains}.`),
  ];
}

function assignmentLegend(graph, actions) {
  const mass = new Float32Array(graph.latent);
  for (let u = 0; u < graph.size; u++) graph.row(u).forEach((value, p) => (mass[p] += value));
  const chips = [...mass.keys()].map((p) =>
    h("button", { class: "chip", title: `Latent vertex ${p}`, onclick: () => actions.latent(p) }, h("span", { class: "swatch", style: { background: latentColour(p) } }), String(p)),
  );
  return h("span", { class: "chips" }, h("span", {}, "Latent vertices; grey is a uniform assignment: "), chips);
}

function likeliest(outputs) {
  return outputs.indexOf(Math.max(...outputs));
}

function precision(about) {
  return `D is stored in ${about.levels} steps up to ${short(about.scale)}; DᵀAD is computed from it.`;
}

function neighbourLists(collection, graph, actions) {
  const section = h("section", { "aria-label": "Neighbours", id: "neighbours" });
  section.append(neighbourList("Nearest by learnt vector", graph.neighbours, collection, actions, (n) => short(n.distance)));
  if (graph.proven.length) {
    const words = (n) => `${short(n.distance)} ${n.exact ? "proven" : "at most"}`;
    section.append(neighbourList("Nearest by exact distance", graph.proven, collection, actions, words));
  }
  return section;
}

function neighbourList(title, neighbours, collection, actions, words) {
  const items = neighbours.map((neighbour) => {
    const name = collection.name(neighbour.graph);
    const target = collection.columns.find((column) => column.role === "target" || column.role === "prediction");
    const value = target ? collection.value(target, neighbour.graph) : "";
    return h(
      "li",
      {},
      h(
        "button",
        { class: "neighbour", onclick: () => actions.open(neighbour.graph), title: name },
        thumbnail(collection, neighbour.graph),
        h("span", { class: "name" }, name),
        h("span", { class: "muted" }, `${words(neighbour)} · ${typeof value === "number" ? short(value) : value}`),
      ),
      h("button", { class: "link", onclick: () => actions.compare(neighbour.graph), "aria-label": `Compare with ${name}` }, "compare"),
    );
  });
  return h("div", {}, h("h3", {}, title), items.length ? h("ol", { class: "neighbours" }, items) : h("p", { class: "note" }, "none"));
}
