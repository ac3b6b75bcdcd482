// Drawings of graphs: vertices coloured by latent vertex, by contribution, or by matching.

import { assignmentColour, contributionColour, strongest } from "./colours.js";
import { h, percent, short, svg } from "./elements.js";

const UNIT = 100; // half the longer side of a drawing
const LETTERS = 60; // vertices up to which labels are written

/**
 * A drawing of a graph.
 *
 * @param graph the graph
 * @param labelNames names of vertex labels; empty if there are none
 * @param paint how it looks: fill(u), text(u), title(u), stroke(e), width(e), dashed(e), edgeTitle(e)
 * @param options title for screen readers, size of vertices, onvertex(u)
 */
export function drawGraph(graph, labelNames, paint, { title, small = false, onvertex, mark = -1 } = {}) {
  const spread = graph.places.map(([, y]) => Math.abs(y));
  const half = Math.max(0.35, ...spread) * UNIT;
  const radius = vertexRadius(graph, small);
  const margin = radius + 5;
  const box = [-UNIT - margin, -half - margin, 2 * (UNIT + margin), 2 * (half + margin)];
  const place = ([x, y]) => [(x * UNIT).toFixed(1), (-y * UNIT).toFixed(1)];
  const lines = graph.edges.map(([u, v], e) => {
    const [[x1, y1], [x2, y2]] = [place(graph.places[u]), place(graph.places[v])];
    const look = { stroke: paint.stroke?.(e) ?? "var(--edge)", "stroke-width": paint.width?.(e) ?? (small ? 2.5 : 1.6) };
    const dash = paint.dashed?.(e) ? { "stroke-dasharray": "4 3" } : {};
    const words = paint.edgeTitle?.(e);
    return svg("line", { x1, y1, x2, y2, ...look, ...dash }, words ? svg("title", {}, words) : null);
  });
  const dots = graph.places.map((spot, u) => {
    const [cx, cy] = place(spot);
    const parts = [svg("circle", { cx, cy, r: radius, fill: paint.fill(u), class: u === mark ? "marked" : "vertex" })];
    if (!small && graph.size <= LETTERS) {
      const size = Math.min(radius * 1.1, 9);
      parts.push(svg("text", { x: cx, y: cy, "font-size": size.toFixed(1), class: "vertex-text" }, abbreviated(String(paint.text(u)))));
    }
    if (paint.title) parts.push(svg("title", {}, paint.title(u)));
    const pick = onvertex ? { onclick: () => onvertex(u), class: "pickable" } : {};
    return svg("g", pick, parts);
  });
  return svg(
    "svg",
    { viewBox: box.map((x) => x.toFixed(1)).join(" "), role: "img", "aria-label": title, class: "drawing" },
    svg("g", { class: "edges" }, lines),
    dots,
  );
}

/** A label that fits into a vertex; the whole is in the vertex's title. */
function abbreviated(label) {
  return label.length > 3 ? `${label.slice(0, 2)}…` : label;
}

const jobs = new WeakMap(); // the function that draws each small picture
let lastPicture = Promise.resolve(); // pictures are drawn one after the other
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      inSight.unobserve(target);
      lastPicture = lastPicture.then(() => target.isConnected && jobs.get(target)());
    }
  },
  { rootMargin: "200px" },
);

/** A small picture of graph i of a collection, drawn once it is in sight. */
export function thumbnail(collection, i, mark = -1) {
  const picture = h("span", { class: "thumb", "aria-hidden": "true" });
  jobs.set(picture, async () => {
    const graph = await collection.graph(i);
    if (graph) picture.append(drawGraph(graph, [], assignmentPaint(graph, []), { small: true, mark, title: "" }));
  });
  inSight.observe(picture);
  return picture;
}

/** A third of the usual length of an edge, within limits. */
function vertexRadius(graph, small) {
  const lengths = graph.edges.map(([u, v]) => Math.hypot(graph.places[u][0] - graph.places[v][0], graph.places[u][1] - graph.places[v][1]));
  const usual = lengths.sort((a, b) => a - b)[lengths.length >> 1] ?? 0.3;
  const radius = 0.29 * usual * UNIT;
  return small ? Math.max(3, Math.min(8, radius)) : Math.max(1.2, Math.min(8.5, radius));
}

/** Vertices coloured by latent vertex: grey where the assignment is uniform. */
export function assignmentPaint(graph, labelNames) {
  const heads = graph.places.map((_, u) => strongest(graph.row(u)));
  return {
    fill: (u) => assignmentColour(heads[u].latent, heads[u].strength),
    text: (u) => labelNames[graph.label[u]] ?? (heads[u].strength > 0.05 ? heads[u].latent : ""),
    title: (u) => describeVertex(graph, u, labelNames),
  };
}

/** The vertex in words: its label and the latent vertices it is assigned to most. */
function describeVertex(graph, u, labelNames) {
  const row = graph.row(u);
  const ranked = [...row.keys()].sort((p, q) => row[q] - row[p]).slice(0, 3);
  const parts = ranked.map((p) => `latent ${p}: ${percent(row[p])}`);
  return `${vertexName(graph, u, labelNames)}: ${parts.join(", ")}`;
}

function vertexName(graph, u, labelNames) {
  return labelNames.length ? `vertex ${u} (${labelNames[graph.label[u]]})` : `vertex ${u}`;
}

/** Vertices and edges shaded by their contribution to one output. */
export function explanationPaint(graph, labelNames, output, outputs) {
  const { vertices, edges } = graph.explanation;
  const vertex = (u) => vertices[u * outputs + output];
  const edge = (e) => edges[e * outputs + output];
  let largest = 1e-12;
  for (let u = 0; u < graph.size; u++) largest = Math.max(largest, Math.abs(vertex(u)));
  for (let e = 0; e < graph.edges.length; e++) largest = Math.max(largest, Math.abs(edge(e)));
  return {
    fill: (u) => contributionColour(vertex(u) / largest),
    text: (u) => labelNames[graph.label[u]] ?? "",
    title: (u) => `${vertexName(graph, u, labelNames)}: contributes ${short(vertex(u))}`,
    stroke: (e) => contributionColour(edge(e) / largest),
    width: (e) => 1.6 + (4 * Math.abs(edge(e))) / largest,
    edgeTitle: (e) => `edge ${graph.edges[e][0]}–${graph.edges[e][1]}: contributes ${short(edge(e))}`,
  };
}

/** Both graphs of a matching: equal numbers are matched, dashed edges disagree. */
export function matchingPaints(first, second, image, labelNames) {
  const back = new Map();
  image.forEach((v, u) => v >= 0 && back.set(v, u));
  const edgeOf = (graph) => new Map(graph.edges.map(([u, v, label]) => [pairKey(u, v), label]));
  const [ours, theirs] = [edgeOf(first), edgeOf(second)];
  const paint = (graph, others, translate, number) => {
    const agrees = graph.edges.map(([u, v, label]) => {
      const [x, y] = [translate(u), translate(v)];
      return x >= 0 && y >= 0 && others.get(pairKey(x, y)) === label;
    });
    return {
      agrees,
      fill: (u) => (translate(u) >= 0 ? "var(--matched)" : "var(--uniform)"),
      text: (u) => (translate(u) >= 0 ? number(u) : "–"),
      title: (u) => `${vertexName(graph, u, labelNames)}: ${translate(u) >= 0 ? `matched with vertex ${translate(u)}` : "no match"}`,
      stroke: (e) => (agrees[e] ? "var(--edge)" : "var(--against)"),
      width: (e) => (agrees[e] ? 1.6 : 2.8),
      dashed: (e) => !agrees[e],
      edgeTitle: (e) => (agrees[e] ? "agrees" : "disagrees"),
    };
  };
  return [
    paint(first, theirs, (u) => image[u], (u) => u),
    paint(second, ours, (v) => back.get(v) ?? -1, (v) => back.get(v)),
  ];
}

function pairKey(u, v) {
  return u < v ? `${u} ${v}` : `${v} ${u}`;
}
