// The data of the page: packets of compressed arrays, unpacked when they are needed.
// softperm/explore/packing.py writes the packets.

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array };

/** The bytes of base64, by the browser's own function where it has one. */
function decode(text) {
  return Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function inflate(id) {
  const bytes = decode(document.getElementById(id).textContent);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The arrays of a packet by name. Their bytes are stored in planes: all first bytes first. */
function unpack(bytes) {
  const end = bytes.indexOf(10);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  const arrays = {};
  let at = end + 1;
  for (const [name, type, length] of header) {
    const array = new ARRAYS[type](length);
    const width = array.BYTES_PER_ELEMENT;
    const target = new Uint8Array(array.buffer);
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0; i < length; i++) target[i * width + plane] = bytes[at++];
    }
    arrays[name] = array;
  }
  return arrays;
}

/** A graph with everything that the page knows about it. */
export class Graph {
  constructor(fields) {
    Object.assign(this, fields);
  }

  /** Row u of the soft permutation. */
  row(u) {
    const rows = this.permutation;
    return rows.subarray(u * this.latent, (u + 1) * this.latent);
  }

  /** The aligned adjacency matrix DᵀAD, row by row. */
  aligned() {
    const p = this.latent;
    const matrix = new Float32Array(p * p);
    for (const [u, v, , weight] of this.edges) {
      const [a, b] = [this.row(u), this.row(v)];
      for (let i = 0; i < p; i++) {
        for (let j = 0; j < p; j++) matrix[i * p + j] += weight * (a[i] * b[j] + b[i] * a[j]);
      }
    }
    return matrix;
  }
}

/** All graphs of the page. */
export class Collection {
  static async open() {
    const about = JSON.parse(document.getElementById("about").textContent);
    const [head, names] = await Promise.all([
      inflate("head").then(unpack),
      about.named ? inflate("names").then((bytes) => JSON.parse(new TextDecoder().decode(bytes))) : null,
    ]);
    return new Collection(about, head, names);
  }

  constructor(about, head, names) {
    Object.assign(this, { about, names, blocks: new Map() });
    this.size = about.size;
    this.places = head.places; // x, y of each graph, from 0 to 65535
    this.stored = about.stored_all ? null : head.stored;
    this.columns = about.columns.map((column, i) => ({ ...column, values: head[`column${i}`] }));
  }

  name(i) {
    return this.names ? this.names[i] : String(i);
  }

  /** The value of a column as text. */
  value(column, i) {
    const value = column.values[i];
    return column.categories ? (column.categories[value] ?? "unknown") : value;
  }

  /** The place of graph i among those whose details are stored; -1 if they are not. */
  rank(i) {
    if (!this.stored) return i;
    let [low, high] = [0, this.stored.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.stored[middle] < i) low = middle + 1;
      else high = middle;
    }
    return this.stored[low] === i ? low : -1;
  }

  /** Graph i; null if the page holds only its place on the map. */
  async graph(i) {
    const rank = this.rank(i);
    if (rank < 0) return null;
    const starts = this.about.blocks;
    let block = starts.length - 1;
    while (starts[block] > rank) block--;
    if (!this.blocks.has(block)) this.blocks.set(block, inflate(`block${block}`).then(unpack).then(offsets));
    return this.cut(await this.blocks.get(block), rank - starts[block], i);
  }

  cut(block, k, i) {
    const { latent, scale, levels, outputs, weighted } = this.about;
    const [v0, v1, e0, e1] = [block.v[k], block.v[k + 1], block.e[k], block.e[k + 1]];
    const [n0, n1, q0, q1] = [block.n[k], block.n[k + 1], block.q[k], block.q[k + 1]];
    const c = outputs.names.length;
    const edges = [];
    for (let e = e0; e < e1; e++) {
      edges.push([block.u[e], block.w[e], block.edge_label[e], weighted ? block.weight[e] : 1]);
    }
    const places = [];
    for (let v = v0; v < v1; v++) places.push([block.x[v] / 127.5 - 1, block.y[v] / 127.5 - 1]);
    const permutation = Float32Array.from(
      block.permutation.subarray(v0 * latent, v1 * latent),
      (level) => (level * scale) / levels,
    );
    const neighbours = (first, last, prefix) => {
      const list = [];
      for (let m = first; m < last; m++) {
        list.push({
          graph: block[`${prefix}_index`][m],
          distance: block[`${prefix}_distance`][m],
          exact: prefix === "proven" && block.proven_exact[m] === 1,
        });
      }
      return list;
    };
    const [xv, xe] = [block.xv[k], block.xe[k]];
    return new Graph({
      index: i,
      name: this.name(i),
      size: v1 - v0,
      label: block.label.subarray(v0, v1),
      edges,
      places,
      latent,
      permutation,
      outputs: block.outputs.subarray(k * c, (k + 1) * c),
      neighbours: neighbours(n0, n1, "near"),
      proven: neighbours(q0, q1, "proven"),
      explanation: block.explained[k]
        ? {
            vertices: block.vertex_part.subarray(xv, xv + (v1 - v0) * c),
            edges: block.edge_part.subarray(xe, xe + (e1 - e0) * c),
          }
        : null,
    });
  }
}

/** Where each graph of a block begins in its arrays. */
function offsets(block) {
  const running = (counts, times = () => 1) => {
    const sums = new Uint32Array(counts.length + 1);
    counts.forEach((count, k) => (sums[k + 1] = sums[k] + count * times(k)));
    return sums;
  };
  const c = block.outputs.length / block.size.length;
  return {
    ...block,
    v: running(block.size),
    e: running(block.edge_count),
    n: running(block.near_count),
    q: running(block.proven_count),
    xv: running(block.size, (k) => (block.explained[k] ? c : 0)),
    xe: running(block.edge_count, (k) => (block.explained[k] ? c : 0)),
  };
}
