// The page: the map on one side, panels on the other.

import { categoryColour, columnColours, css, dotColour, isDark } from "./colours.js";
import { showComparison } from "./compare_panel.js";
import { Collection } from "./data.js";
import { h, plural, short } from "./elements.js";
import { showGraph, showMissing } from "./graph_panel.js";
import { showLatent } from "./latent_panel.js";
import { GraphMap } from "./map.js";
import { showModel } from "./model_panel.js";
import { startServerPanel } from "./server_panel.js";

const LISTED = 60; // graphs in the list below the map
const element = (id) => document.getElementById(id);

class Page {
  constructor(collection) {
    this.collection = collection;
    this.filters = new Map(); // name -> {label, keep(i)}
    this.selected = -1;
    this.shown = null; // the graph in the panel
    this.view = { explaining: false, output: 0, chosenOutput: null };
    this.actions = {
      open: (i) => this.open(i),
      compare: (i) => this.compare(i),
      latent: (p) => this.latent(p),
    };
    this.map = new GraphMap(element("map"), collection.places, {
      pick: (i, second) => (second || this.choosingSecond ? this.compare(i) : this.open(i)),
      lasso: (indices) => this.lasso(indices),
      hover: (i, place, announced) => this.hover(i, place, announced),
    });
    if (collection.about.server) startServerPanel(this);
    this.#header();
    this.#controls();
    this.#tabs();
    this.colourBy(0);
    this.filterChanged();
    showModel(element("panel-model"), collection, (...cell) => this.filterCell(...cell));
    showLatent(element("panel-latent"), collection, 0, this.actions);
  }

  #header() {
    const { about } = this.collection;
    document.title = `${about.name} · softperm`;
    element("title").textContent = about.name;
    element("subtitle").textContent = `${plural(about.size, "graph")} · ${about.latent} latent vertices`;
    element("map-note").textContent = about.map_note;
  }

  #controls() {
    const { columns } = this.collection;
    const options = (skip) => columns.map((column, c) => (skip?.(column) ? null : h("option", { value: c }, column.name)));
    element("colour").append(...options().filter(Boolean));
    element("colour").addEventListener("change", (event) => this.colourBy(Number(event.target.value)));
    element("filter-column").append(h("option", { value: "" }, "all graphs"), ...options());
    element("filter-column").addEventListener("change", () => this.#filterControls());
    element("search").addEventListener("input", (event) => this.search(event.target.value));
    element("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.listed.length) this.open(this.listed[0]);
    });
    element("lasso").addEventListener("click", () => this.setLassoing(!this.map.lassoing));
    element("second").addEventListener("click", () => this.setChoosing(!this.choosingSecond));
    element("reset").addEventListener("click", () => this.map.reset());
    element("theme").addEventListener("click", () => this.#switchTheme());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#recolour());
    document.addEventListener("keydown", (event) => {
      if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
      if (event.key === "/") {
        event.preventDefault();
        element("search").focus();
      } else if (event.key === "Escape") {
        this.clearFilters();
      }
    });
  }

  #switchTheme() {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    this.#recolour();
  }

  #recolour() {
    this.colourBy(Number(element("colour").value));
  }

  setLassoing(on) {
    this.map.lassoing = on;
    element("lasso").setAttribute("aria-pressed", on);
    element("map").style.cursor = on ? "crosshair" : "grab";
  }

  setChoosing(on) {
    this.choosingSecond = on;
    element("second").setAttribute("aria-pressed", on);
    if (on) this.say("Choose the graph to compare with.");
  }

  say(words) {
    element("status").textContent = words;
  }

  colourBy(c) {
    const column = this.collection.columns[c];
    const { colours, range } = columnColours(column);
    this.map.setColours(colours);
    element("colour").value = c;
    element("legend").replaceChildren(...(range ? ramp(range) : keys(column.categories)));
  }

  /** Names and categories that contain the text. */
  search(text) {
    const wanted = text.trim().toLowerCase();
    const { collection } = this;
    if (!wanted) this.filters.delete("search");
    else this.filters.set("search", { label: `name has “${text.trim()}”`, keep: (i) => collection.name(i).toLowerCase().includes(wanted) });
    this.filterChanged();
    const exact = wanted && this.listed.find((i) => collection.name(i).toLowerCase() === wanted);
    if (exact !== undefined && exact !== "") this.listed = [exact, ...this.listed.filter((i) => i !== exact)];
  }

  #filterControls() {
    const holder = element("filter-values");
    const chosen = element("filter-column").value;
    holder.replaceChildren();
    this.filters.delete("column");
    this.filterChanged();
    if (chosen === "") return;
    const column = this.collection.columns[Number(chosen)];
    const set = (label, keep) => {
      this.filters.set("column", { label, keep });
      this.filterChanged();
    };
    if (column.categories) {
      const names = [...column.categories, "unknown"].filter((_, code) => column.values.includes(code));
      const select = h(
        "select",
        { "aria-label": `Value of ${column.name}`, id: "filter-value", onchange: () => {
          const code = Number(select.value);
          set(`${column.name}: ${column.categories[code] ?? "unknown"}`, (i) => column.values[i] === code);
        } },
        h("option", { value: "", disabled: true, selected: true }, "choose"),
        names.map((name) => h("option", { value: column.categories.includes(name) ? column.categories.indexOf(name) : column.categories.length }, name)),
      );
      holder.append(select);
      return;
    }
    const field = (name) => h("input", { type: "number", step: "any", placeholder: name, "aria-label": `${name} of ${column.name}`, id: `filter-${name}`, onchange: update });
    const [least, most] = [field("least"), field("most")];
    function update() {
      const low = least.value === "" ? -Infinity : Number(least.value);
      const high = most.value === "" ? Infinity : Number(most.value);
      set(`${column.name} from ${least.value || "…"} to ${most.value || "…"}`, (i) => column.values[i] >= low && column.values[i] <= high);
    }
    holder.append(least, most);
  }

  filterCell(target, t, predicted, p) {
    const label = `${target.categories[t]} predicted as ${predicted.categories[p]}`;
    this.filters.set("cell", { label, keep: (i) => target.values[i] === t && predicted.values[i] === p });
    this.filterChanged();
  }

  lasso(indices) {
    const inside = new Set(indices);
    this.filters.set("lasso", { label: `${plural(indices.length, "graph")} in the lasso`, keep: (i) => inside.has(i) });
    this.setLassoing(false);
    this.filterChanged();
  }

  clearFilters() {
    this.filters.clear();
    element("search").value = "";
    element("filter-column").value = "";
    element("filter-values").replaceChildren();
    this.filterChanged();
  }

  filterChanged() {
    const active = new Uint8Array(this.collection.size).fill(1);
    for (const { keep } of this.filters.values()) {
      for (let i = 0; i < active.length; i++) if (active[i] && !keep(i)) active[i] = 0;
    }
    this.map.setActive(active);
    let count = 0;
    this.listed = [];
    for (let i = 0; i < active.length; i++) {
      if (!active[i]) continue;
      count++;
      if (this.listed.length < LISTED) this.listed.push(i);
    }
    const chips = [...this.filters].map(([name, { label }]) =>
      h("button", { class: "chip", "aria-label": `Remove the filter: ${label}`, onclick: () => { this.filters.delete(name); this.filterChanged(); } }, label, h("span", { "aria-hidden": "true" }, " ×")),
    );
    element("filters").replaceChildren(...chips);
    this.say(this.filters.size ? `${count.toLocaleString("en")} of ${plural(active.length, "graph")}` : plural(count, "graph"));
    element("list").replaceChildren(...this.listed.map((i) => h("li", {}, h("button", { class: "link", onclick: () => this.open(i) }, this.collection.name(i)))));
    element("list-more").textContent = count > LISTED ? `and ${(count - LISTED).toLocaleString("en")} more` : "";
  }

  hover(i, place, announced = false) {
    const tip = element("tip");
    tip.hidden = i < 0;
    if (i < 0) return;
    const column = this.collection.columns[Number(element("colour").value)];
    const value = this.collection.value(column, i);
    tip.textContent = `${this.collection.name(i)} · ${column.name} ${typeof value === "number" ? short(value) : value}`;
    Object.assign(tip.style, { left: `${place[0]}px`, top: `${place[1]}px` });
    if (announced) this.say(tip.textContent);
  }

  async open(i) {
    this.setChoosing(false);
    this.selected = i;
    this.map.focus = i;
    this.map.setMarks([{ index: i, label: shortened(this.collection.name(i)) }]);
    const graph = await this.#details(i);
    if (this.selected !== i) return; // another click came first
    this.shown = graph;
    const panel = element("panel-graph");
    if (graph) showGraph(panel, this.collection, graph, this.view, this.actions);
    else showMissing(panel, this.collection, i);
    this.select("graph");
    afterFrame(() => (this.answered = performance.now()));
  }

  /** Graph i, from the server if the page does not hold it; null if nobody has it. */
  async #details(i) {
    try {
      return (await this.collection.graph(i)) ?? (await this.actions.describe?.(i)) ?? null;
    } catch (error) {
      this.say(`Not answered: ${error.message}`);
      return null;
    }
  }

  /** Shows a graph that is not part of the collection. */
  openForeign(graph) {
    this.selected = -1;
    this.shown = graph;
    showGraph(element("panel-graph"), this.collection, graph, this.view, this.actions);
    this.select("graph");
  }

  async compare(i) {
    if (!this.shown) return this.open(i);
    this.setChoosing(false);
    const second = await this.#details(i);
    this.select("compare");
    if (!second) {
      element("panel-compare").replaceChildren(h("p", { class: "note" }, this.collection.about.missing));
      return;
    }
    const marks = this.shown.index >= 0 ? [{ index: this.shown.index, label: shortened(this.shown.name) }] : [];
    this.map.setMarks([...marks, { index: i, label: shortened(second.name) }]);
    await showComparison(element("panel-compare"), this.collection, this.shown, second, this.actions.distance);
  }

  latent(p) {
    showLatent(element("panel-latent"), this.collection, p, this.actions);
    this.select("latent");
  }

  #tabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")].filter((tab) => !tab.hidden);
    tabs.forEach((tab, k) => {
      tab.addEventListener("click", () => this.select(tab.dataset.panel));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) tabs[(k + step + tabs.length) % tabs.length].focus();
      });
    });
  }

  select(name) {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.dataset.panel === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      element(`panel-${tab.dataset.panel}`).hidden = !chosen;
    }
  }
}

function ramp([low, high]) {
  const stops = Array.from({ length: 10 }, (_, k) => css(dotColour(k / 9)));
  return [h("span", {}, short(low)), h("span", { class: "ramp", style: { background: `linear-gradient(to right, ${stops.join(",")})` } }), h("span", {}, short(high))];
}

function keys(categories) {
  const shown = categories.slice(0, 16).map((name, code) =>
    h("span", { class: "key" }, h("span", { class: "swatch", style: { background: css(categoryColour(code, categories.length)) } }), name),
  );
  if (categories.length > 16) shown.push(h("span", { class: "muted" }, `and ${categories.length - 16} more`));
  return shown;
}

function shortened(name) {
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}

async function start() {
  const collection = await Collection.open();
  const page = new Page(collection);
  window.page = page; // for the console and for tests
  afterFrame(() => {
    page.firstMapMilliseconds = performance.now();
    document.body.dataset.ready = "yes";
  });
}

/** Calls a function once the next frame is painted. */
function afterFrame(call) {
  requestAnimationFrame(() => setTimeout(call));
}

start();
