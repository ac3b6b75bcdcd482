// The panel of two graphs: their best matching and what is proven about their distance.

import { drawGraph, matchingPaints } from "./drawing.js";
import { h, plural } from "./elements.js";
import { matchInWorker } from "./matching.js";

const MILLISECONDS = 2000; // for the search in the browser
const LARGEST = 128; // vertices of graphs that are matched in the browser

/** Shows two graphs; `ask` computes a distance on the server, where there is one. */
export async function showComparison(panel, collection, first, second, ask = null) {
  const { labels } = collection.about;
  const verdict = h("p", { class: "verdict", id: "verdict", role: "status" }, "Matching …");
  const holders = [h("div", { class: "drawing-holder" }), h("div", { class: "drawing-holder" })];
  const titles = [first, second].map((graph) => h("h3", { class: "name" }, graph.name));
  panel.replaceChildren(
    h("div", { class: "pair drawings" }, h("div", {}, titles[0], holders[0]), h("div", {}, titles[1], holders[1])),
    verdict,
    h(
      "p",
      { class: "note" },
      "Vertices of equal number are matched; they have equal labels. Dashed edges disagree: they have no match, or one of another label. The distance is their number; a pair of matched edges of different labels counts once.",
    ),
  );
  const plain = ({ label, edges }) => ({ labels: Array.from(label), edges: edges.map(([u, v, kind]) => [u, v, kind]) });
  const draw = (image) => {
    const paints = matchingPaints(first, second, image, labels);
    [first, second].forEach((graph, k) => {
      const title = `${graph.name}: ${plural(paints[k].agrees.filter((agrees) => !agrees).length, "disagreeing edge")}`;
      holders[k].replaceChildren(drawGraph(graph, labels, paints[k], { title }));
    });
  };
  const conclude = (result) => {
    draw(result.image);
    verdict.textContent = certificate(result);
    verdict.dataset.exact = result.exact;
    verdict.dataset.distance = result.distance;
  };
  draw(Array(first.size).fill(-1));
  let result = null;
  if (Math.max(first.size, second.size) <= LARGEST) {
    conclude((result = await matchInWorker(plain(first), plain(second), MILLISECONDS)));
  }
  if (!result?.exact && ask) {
    try {
      conclude(await ask(first, second));
    } catch (error) {
      if (!result) verdict.textContent = `Not answered: ${error.message}`;
    }
  } else if (!result) {
    verdict.textContent = `Graphs of more than ${LARGEST} vertices are matched by softperm explore --serve.`;
  }
}

function certificate({ distance, lower, exact }) {
  if (exact) return `Distance ${distance}, proven: no matching has fewer disagreements.`;
  return `Distance between ${lower} and ${distance}: the search ended before a proof.`;
}
