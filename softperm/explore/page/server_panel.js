// The panel for graphs of one's own, where softperm explore --serve answers.

import { Graph } from "./data.js";
import { h } from "./elements.js";

/** Asks the server; an answer that is not good becomes an error with the server's sentence. */
async function ask(endpoint, body) {
  const answer = await fetch(`api/${endpoint}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

/** What a request says of a graph: its place in the collection, or what was typed. */
function reference(graph) {
  return graph.index >= 0 ? { position: graph.index } : graph.input;
}

async function describe(collection, input, index, name) {
  const answer = await ask("describe", { graph: input });
  return new Graph({
    ...answer,
    index,
    name,
    input,
    latent: collection.about.latent,
    label: Uint32Array.from(answer.label),
    permutation: Float32Array.from(answer.permutation.flat()),
    outputs: Float32Array.from(answer.outputs),
    proven: [],
    explanation: null,
  });
}

/** Adds the panel to the page, and what only a server can do to its other parts. */
export function startServerPanel(page) {
  const { collection, actions } = page;
  const explain = async (graph) => {
    const answer = await ask("explain", { graph: reference(graph) });
    graph.explanation = { vertices: Float32Array.from(answer.vertices.flat()), edges: Float32Array.from(answer.edge_totals.flat()) };
  };
  if (collection.about.explains) actions.explain = explain;
  actions.distance = async (first, second) => {
    const answer = await ask("distance", { first: reference(first), second: reference(second) });
    return { distance: answer.distance, lower: answer.lower_bound, exact: answer.exact, image: answer.matching };
  };
  actions.describe = (i) => describe(collection, { position: i }, i, collection.name(i));

  const field = h("textarea", { id: "own-graph", rows: 6, "aria-label": "A SMILES, or a graph as node-link JSON", placeholder: 'CCO\n\nor {"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}]}' });
  const file = h("input", { type: "file", id: "own-file", "aria-label": "File with a graph", onchange: async () => {
    if (file.files.length) field.value = (await file.files[0].text()).split("\n").find((line) => line.trim()) ?? "";
  } });
  const message = h("p", { class: "note", role: "status", id: "own-message" });
  const submit = async (event) => {
    event.preventDefault();
    const text = field.value.trim();
    message.textContent = "Asking the model …";
    try {
      const input = text.startsWith("{") ? JSON.parse(text) : text;
      const name = typeof input === "string" ? input : "your graph";
      const graph = await describe(collection, input, -1, name);
      message.textContent = graph.unknown_labels ? `${graph.unknown_labels} labels were not seen in training; they count as none.` : "";
      page.openForeign(graph);
    } catch (error) {
      message.textContent = `Not answered: ${error.message}`;
    }
  };
  document.getElementById("panel-own").replaceChildren(
    h("h2", {}, "A graph of your own"),
    h("p", { class: "note" }, "Type a SMILES or node-link JSON, or choose a file, of which the first line is read. The model aligns it, predicts for it and finds its neighbours; it can be explained and compared like any other graph."),
    h("form", { class: "own", onsubmit: submit }, field, file, h("button", { id: "own-submit" }, "Predict")),
    message,
    h("p", { class: "note" }, "The same answers for programs: ", h("a", { href: "openapi.json" }, "openapi.json"), "."),
  );
  document.getElementById("tab-own").hidden = false;
}
