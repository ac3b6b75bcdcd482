// Elements of the page. Text is always text: nothing here, or elsewhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick`) and children (elements or text). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element; see `h`. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

/** Replaces all that an element holds; null is nothing. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child != null));
}

/** A number with few digits: 0.05213, 12.3, 1,234. */
export function short(value) {
  if (value == null || Number.isNaN(value)) return "unknown";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
