// Matrices as heat maps.

import { rampColour } from "./colours.js";
import { h, short } from "./elements.js";

/**
 * A heat map with a caption that tells the value under the pointer.
 *
 * @param values the matrix, row by row
 * @param rows, columns its size
 * @param names title, and the words for a row and a column
 * @param range the numbers of the first and the last colour
 */
export function heatMap(values, rows, columns, { title, row, column }, range = null) {
  const low = range ? range[0] : 0;
  const high = range ? range[1] : Math.max(1e-12, ...values);
  const canvas = h("canvas", { width: columns, height: rows, class: "heat", role: "img" });
  canvas.setAttribute("aria-label", `${title}: ${rows} by ${columns}, from ${short(low)} to ${short(high)}`);
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set(rampColour((values[i] - low) / (high - low || 1)), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.style.aspectRatio = `${columns} / ${Math.max(columns / 3, Math.min(rows, 3 * columns))}`;
  const rest = `${short(low)} to ${short(high)}`;
  const reading = h("span", { class: "reading" }, rest);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
    const j = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
    reading.textContent = `${row} ${i}, ${column} ${j}: ${short(values[i * columns + j])}`;
  });
  canvas.addEventListener("pointerleave", () => (reading.textContent = rest));
  return h("figure", { class: "heat-figure" }, h("figcaption", {}, h("strong", {}, title), reading), canvas);
}
