// The map: one dot for each graph, drawn pixel by pixel, so that 200,000 of them move at once.

const GRID = 256; // cells along each side of the grid in which the nearest dot is looked up
const PICK = 14; // pixels within which a click finds a dot
const CROWD = 20000; // graphs from which dots are drawn roughly while the map moves
const REST = 140; // milliseconds after which a map that moved is drawn finely

export class GraphMap {
  /**
   * @param canvas where to draw
   * @param places x, y of each graph, from 0 to 65535
   * @param listeners pick(i, wantsSecond), lasso(indices), hover(i or -1)
   */
  constructor(canvas, places, listeners) {
    Object.assign(this, { canvas, places, listeners });
    this.size = places.length / 2;
    this.context = canvas.getContext("2d");
    this.colours = new Uint8Array(3 * this.size).fill(120);
    this.active = new Uint8Array(this.size).fill(1);
    this.zoom = 1;
    this.centre = [0.5, 0.5];
    this.marks = [];
    this.focus = -1;
    this.path = null; // the lasso while it is drawn
    this.lassoing = false;
    this.pointers = new Map();
    this.#buildGrid();
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  setColours(colours) {
    this.colours = colours;
    this.draw();
  }

  /** Which graphs are active; the others become faint. */
  setActive(active) {
    this.active = active;
    this.draw();
  }

  /** Rings around graphs: [{index, label}]. */
  setMarks(marks) {
    this.marks = marks;
    this.#drawMarks();
  }

  reset() {
    this.zoom = 1;
    this.centre = [0.5, 0.5];
    this.draw();
  }

  draw() {
    this.stale = true; // the dots are drawn again; otherwise only marks and the lasso are
    this.#drawMarks();
  }

  #drawMarks() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.#paint();
    });
  }

  /** Draws while the map moves: a large one roughly, and finely once it rests. */
  #drawMoving() {
    if (this.size > CROWD) {
      this.moving = true;
      clearTimeout(this.resting);
      this.resting = setTimeout(() => {
        this.moving = false;
        this.draw();
      }, REST);
    }
    this.draw();
  }

  #view() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const side = 0.92 * Math.min(width, height);
    const stretch = Math.min(2, Math.max(width, height) / Math.min(width, height));
    const [sx, sy] = width > height ? [side * stretch, side] : [side, side * stretch];
    const scale = [Math.min(sx, 0.95 * width) * this.zoom, Math.min(sy, 0.95 * height) * this.zoom];
    return { width, height, scale };
  }

  /** The place of graph i on the canvas, in CSS pixels. */
  place(i, view = this.#view()) {
    return [
      view.width / 2 + (this.places[2 * i] / 65535 - this.centre[0]) * view.scale[0],
      view.height / 2 - (this.places[2 * i + 1] / 65535 - this.centre[1]) * view.scale[1],
    ];
  }

  #unplace(x, y, view = this.#view()) {
    return [
      this.centre[0] + (x - view.width / 2) / view.scale[0],
      this.centre[1] - (y - view.height / 2) / view.scale[1],
    ];
  }

  #radius() {
    const base = this.size < 500 ? 4.5 : this.size < 5000 ? 3 : this.size < 50000 ? 2 : 1.3;
    return Math.min(6, base * Math.sqrt(this.zoom) ** 0.8);
  }

  #paint() {
    const view = this.#view();
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const [width, height] = [Math.round(view.width * ratio), Math.round(view.height * ratio)];
    if (!width || !height) return;
    if (this.canvas.width !== width || this.canvas.height !== height) {
      Object.assign(this.canvas, { width, height });
      this.image = this.context.createImageData(width, height);
      this.stale = true;
    }
    const style = getComputedStyle(this.canvas);
    if (this.stale) this.#paintDots(view, ratio, width, height, style);
    this.stale = false;
    this.context.putImageData(this.image, 0, 0);
    this.#paintMarks(view, ratio, style);
  }

  #paintDots(view, ratio, width, height, style) {
    const background = channels(style.getPropertyValue("--map"));
    new Uint32Array(this.image.data.buffer).fill(
      0xff000000 | (background[2] << 16) | (background[1] << 8) | background[0],
    );
    if (this.moving) {
      this.#stamp(view, ratio, width, height);
    } else {
      const dot = disc(this.#radius() * ratio);
      this.#splat(view, ratio, width, height, dot, 0, 0.12);
      this.#splat(view, ratio, width, height, dot, 1, this.size > CROWD ? 0.6 : 0.88);
    }
  }

  /** Where places lie in the image: x = ax · place + bx. */
  #scale(view, ratio) {
    return {
      ax: (view.scale[0] * ratio) / 65535,
      ay: (-view.scale[1] * ratio) / 65535,
      bx: (view.width / 2 - this.centre[0] * view.scale[0]) * ratio,
      by: (view.height / 2 + this.centre[1] * view.scale[1]) * ratio,
    };
  }

  /** Draws the active graphs as squares of four pixels. */
  #stamp(view, ratio, width, height) {
    const { places, colours, active, size } = this;
    const pixels = new Uint32Array(this.image.data.buffer);
    const { ax, ay, bx, by } = this.#scale(view, ratio);
    for (let i = 0; i < size; i++) {
      if (!active[i]) continue;
      const x = (ax * places[2 * i] + bx) | 0;
      const y = (ay * places[2 * i + 1] + by) | 0;
      if (x < 0 || y < 0 || x >= width - 1 || y >= height - 1) continue;
      const colour = 0xff000000 | (colours[3 * i + 2] << 16) | (colours[3 * i + 1] << 8) | colours[3 * i];
      const at = y * width + x;
      pixels[at] = pixels[at + 1] = pixels[at + width] = pixels[at + width + 1] = colour;
    }
  }

  /** Blends the dots of all active, or all inactive, graphs into the image. */
  #splat(view, ratio, width, height, dot, wanted, opacity) {
    const { places, colours, active } = this;
    const data = new Uint8Array(this.image.data.buffer);
    const { ax, ay, bx, by } = this.#scale(view, ratio);
    const { reach, offsets, cover } = dot;
    const share = Int32Array.from(cover, (c) => Math.round(256 * c * opacity)); // of 256
    const count = share.length;
    const jump = Int32Array.from({ length: cover.length }, (_, k) => 4 * (offsets[2 * k + 1] * width + offsets[2 * k]));
    for (let i = 0; i < this.size; i++) {
      if (active[i] !== wanted) continue;
      const x = Math.round(ax * places[2 * i] + bx);
      const y = Math.round(ay * places[2 * i + 1] + by);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) continue;
      const r = colours[3 * i];
      const g = colours[3 * i + 1];
      const b = colours[3 * i + 2];
      const at = 4 * (y * width + x);
      for (let k = 0; k < count; k++) {
        const pixel = at + jump[k];
        const a = share[k];
        data[pixel] += ((r - data[pixel]) * a) >> 8;
        data[pixel + 1] += ((g - data[pixel + 1]) * a) >> 8;
        data[pixel + 2] += ((b - data[pixel + 2]) * a) >> 8;
      }
    }
  }

  #paintMarks(view, ratio, style) {
    const { context } = this;
    context.save();
    context.scale(ratio, ratio);
    const ink = style.getPropertyValue("--ink");
    const paper = style.getPropertyValue("--map");
    const radius = this.#radius() + 3;
    const ring = (i, colour, wide) => {
      const [x, y] = this.place(i, view);
      for (const [stroke, line] of [[paper, wide + 3], [colour, wide]]) {
        context.beginPath();
        context.arc(x, y, radius, 0, 2 * Math.PI);
        context.strokeStyle = stroke;
        context.lineWidth = line;
        context.stroke();
      }
      return [x, y];
    };
    if (this.focus >= 0) ring(this.focus, ink, 1);
    for (const { index, label } of this.marks) {
      const [x, y] = ring(index, ink, 2);
      context.font = "600 12px system-ui, sans-serif";
      context.lineWidth = 4;
      context.strokeStyle = paper;
      context.strokeText(label, x + radius + 3, y + 4);
      context.fillStyle = ink;
      context.fillText(label, x + radius + 3, y + 4);
    }
    if (this.path?.length > 1) {
      context.beginPath();
      this.path.forEach(([x, y]) => context.lineTo(x, y));
      context.closePath();
      context.fillStyle = "rgb(52 81 178 / 0.12)";
      context.fill();
      context.strokeStyle = ink;
      context.lineWidth = 1;
      context.setLineDash([4, 3]);
      context.stroke();
    }
    context.restore();
  }

  #buildGrid() {
    const cell = (i) => (this.places[2 * i + 1] >> 8) * GRID + (this.places[2 * i] >> 8);
    this.starts = new Uint32Array(GRID * GRID + 1);
    for (let i = 0; i < this.size; i++) this.starts[cell(i) + 1]++;
    for (let c = 0; c < GRID * GRID; c++) this.starts[c + 1] += this.starts[c];
    const next = this.starts.slice();
    this.members = new Uint32Array(this.size);
    for (let i = 0; i < this.size; i++) this.members[next[cell(i)]++] = i;
  }

  /** The active graph nearest to a point of the canvas; -1 if none is near. */
  nearest(x, y, reach = PICK) {
    const view = this.#view();
    const low = this.#unplace(x - reach, y + reach, view);
    const high = this.#unplace(x + reach, y - reach, view);
    const range = (a, b) => [Math.max(0, Math.floor(a * GRID)), Math.min(GRID - 1, Math.floor(b * GRID))];
    const [x0, x1] = range(low[0], high[0]);
    const [y0, y1] = range(low[1], high[1]);
    let [best, least] = [-1, reach * reach];
    for (let row = y0; row <= y1; row++) {
      for (let m = this.starts[row * GRID + x0] ?? 0; m < (this.starts[row * GRID + x1 + 1] ?? 0); m++) {
        const i = this.members[m];
        if (!this.active[i]) continue;
        const [px, py] = this.place(i, view);
        const distance = (px - x) ** 2 + (py - y) ** 2;
        if (distance < least) [best, least] = [i, distance];
      }
    }
    return best;
  }

  #listen() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.moved = false;
      if (this.lassoing && this.pointers.size === 1) this.path = [at(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      const place = at(event);
      const before = this.pointers.get(event.pointerId);
      if (!before) return this.#hover(place);
      if (Math.hypot(place[0] - before[0], place[1] - before[1]) < 3 && !this.moved) return;
      this.moved = true;
      if (this.path) {
        this.path.push(place);
      } else if (this.pointers.size === 2) {
        const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
        const spread = (p) => Math.max(10, Math.hypot(p[0] - other[0], p[1] - other[1]));
        this.#zoomAt(spread(place) / spread(before), other);
      } else {
        const { scale } = this.#view();
        this.centre[0] -= (place[0] - before[0]) / scale[0];
        this.centre[1] += (place[1] - before[1]) / scale[1];
      }
      this.pointers.set(event.pointerId, place);
      if (this.path) this.#drawMarks();
      else this.#drawMoving();
    });
    const finish = (event) => {
      if (!this.pointers.delete(event.pointerId)) return;
      if (this.path && this.moved) this.listeners.lasso(this.#inside(this.path));
      else if (!this.moved && event.type === "pointerup") {
        const i = this.nearest(...at(event));
        if (i >= 0) this.listeners.pick(i, event.shiftKey);
      }
      this.path = null;
      this.#drawMarks();
    };
    canvas.addEventListener("pointerup", finish);
    canvas.addEventListener("pointercancel", finish);
    canvas.addEventListener("pointerleave", () => this.listeners.hover(-1));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.#zoomAt(Math.exp(-event.deltaY / 400), at(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #hover(place) {
    const i = this.nearest(...place);
    this.canvas.style.cursor = this.lassoing ? "crosshair" : i >= 0 ? "pointer" : "grab";
    if (i !== this.hovered) this.listeners.hover((this.hovered = i), place);
  }

  #zoomAt(factor, [x, y]) {
    const view = this.#view();
    const before = this.#unplace(x, y, view);
    this.zoom = Math.max(0.5, Math.min(4000, this.zoom * factor));
    const after = this.#unplace(x, y);
    this.centre[0] += before[0] - after[0];
    this.centre[1] += before[1] - after[1];
    this.#drawMoving();
  }

  #key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const { width, height } = this.#view();
    if (event.key in steps) this.#step(steps[event.key]);
    else if (event.key === "Enter" && this.focus >= 0) this.listeners.pick(this.focus, event.shiftKey);
    else if (event.key === "+" || event.key === "=") this.#zoomAt(1.4, [width / 2, height / 2]);
    else if (event.key === "-") this.#zoomAt(1 / 1.4, [width / 2, height / 2]);
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }

  /** Moves the focus to the nearest active graph in a direction. */
  #step([dx, dy]) {
    const view = this.#view();
    const from = this.focus >= 0 ? this.place(this.focus, view) : [view.width / 2, view.height / 2];
    let [best, least] = [-1, Infinity];
    for (let i = 0; i < this.size; i++) {
      if (!this.active[i] || i === this.focus) continue;
      const [x, y] = this.place(i, view);
      const along = (x - from[0]) * dx + (y - from[1]) * dy;
      const across = Math.abs((x - from[0]) * dy) + Math.abs((y - from[1]) * dx);
      if (along <= 0 && this.focus >= 0) continue;
      const cost = this.focus >= 0 ? along + 2.5 * across : Math.hypot(x - from[0], y - from[1]);
      if (cost < least) [best, least] = [i, cost];
    }
    if (best < 0) return;
    this.focus = best;
    const [x, y] = this.place(best, view);
    if (x < 0 || y < 0 || x > view.width || y > view.height) {
      this.centre = [this.places[2 * best] / 65535, this.places[2 * best + 1] / 65535];
      this.stale = true;
    }
    this.listeners.hover(best, this.place(best), true);
    this.#drawMarks();
  }

  /** The active graphs inside a polygon on the canvas. */
  #inside(path) {
    const view = this.#view();
    const indices = [];
    for (let i = 0; i < this.size; i++) {
      if (!this.active[i]) continue;
      const [x, y] = this.place(i, view);
      let inside = false;
      for (let a = 0, b = path.length - 1; a < path.length; b = a++) {
        const [[xa, ya], [xb, yb]] = [path[a], path[b]];
        if (ya > y !== yb > y && x < ((xb - xa) * (y - ya)) / (yb - ya) + xa) inside = !inside;
      }
      if (inside) indices.push(i);
    }
    return indices;
  }
}

/** The pixels of a disc around a dot's place, and how much of each the disc covers. */
function disc(radius) {
  const reach = Math.ceil(radius + 0.5);
  const [offsets, cover] = [[], []];
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const part = Math.min(1, radius + 0.5 - Math.hypot(x, y));
      if (part <= 0) continue;
      offsets.push(x, y);
      cover.push(part);
    }
  }
  return { reach, offsets, cover };
}

function channels(colour) {
  return colour.match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
}
