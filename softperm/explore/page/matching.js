// The distance of two small graphs, proven in the browser.
//
// Vertices are matched with vertices of equal label or with none. An edge without a match costs 1,
// and so does one that is matched with an edge of another label: softperm's EditCosts.edges().

/**
 * The best matching of two graphs.
 *
 * Depth-first search for a matching that costs at most t, for t = lower bound, lower bound + 1, …:
 * a search that ends without one proves that the distance is larger than t. This function refers to
 * nothing outside itself, because its text is sent to a worker.
 *
 * @param first, second {labels: [...], edges: [[u, v, label], …]}
 * @param milliseconds when to give up
 * @returns {distance, lower, exact, image}: image[u] is the match of vertex u of the first, or -1
 */
export function solveMatching(first, second, milliseconds) {
  const deadline = performance.now() + milliseconds;
  const matrix = ({ labels, edges }) => {
    const rows = labels.map(() => new Map());
    for (const [u, v, label] of edges) {
      rows[u].set(v, label);
      rows[v].set(u, label);
    }
    return rows;
  };
  const [a, b] = [matrix(first), matrix(second)];
  const [n, m] = [a.length, b.length];
  const order = visitOrder();
  const image = new Int32Array(n).fill(-2); // -2: not decided
  const owner = new Int32Array(m).fill(-1);
  const twins = second.labels.map((label, v) => {
    const [[to, bond] = []] = b[v].size === 1 ? b[v] : [];
    return to === undefined ? `alone ${v}` : `${label} ${to} ${bond}`;
  });
  let steps = 0;
  let best = { cost: Infinity, image: null };

  /** Vertices that come next to those before them, rare labels and large degrees first. */
  function visitOrder() {
    const counts = new Map();
    for (const label of second.labels) counts.set(label, (counts.get(label) ?? 0) + 1);
    const listed = [];
    const seen = new Set();
    while (listed.length < n) {
      let [choice, value] = [-1, -Infinity];
      for (let u = 0; u < n; u++) {
        if (seen.has(u)) continue;
        let touching = 0;
        for (const v of a[u].keys()) touching += seen.has(v);
        const score = 1000 * touching + 10 * a[u].size - (counts.get(first.labels[u]) ?? 0) / m;
        if (score > value) [choice, value] = [u, score];
      }
      seen.add(choice);
      listed.push(choice);
    }
    return listed;
  }

  /** How many of two multisets of kinds, grouped twice, cannot be matched. */
  function unmatched(ours, theirs) {
    let cost = 0;
    for (const group of new Set([...ours.keys(), ...theirs.keys()])) {
      const [p, q] = [ours.get(group), theirs.get(group)];
      let [all, others, common] = [0, 0, 0];
      if (p) for (const count of p.values()) all += count;
      if (q) for (const [kind, count] of q) {
        others += count;
        common += Math.min(count, p?.get(kind) ?? 0);
      }
      cost += Math.max(all, others) - common;
    }
    return cost;
  }

  function count(groups, group, kind) {
    let kinds = groups.get(group);
    if (!kinds) groups.set(group, (kinds = new Map()));
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  }

  /** A lower bound of the cost of edges that are not decided yet. */
  function remaining() {
    let cost = 0;
    const [inner, outer] = [new Map(), new Map()];
    const pair = (x, y) => (x < y ? x * 4096 + y : y * 4096 + x);
    for (let u = 0; u < n; u++) {
      const v = image[u];
      if (v === -2) {
        for (const [w, bond] of a[u]) {
          if (w > u && image[w] === -2) count(inner, pair(first.labels[u], first.labels[w]), bond);
        }
      } else {
        const [ours, theirs] = [new Map(), new Map()];
        for (const [w, bond] of a[u]) if (image[w] === -2) count(ours, first.labels[w], bond);
        if (v >= 0) for (const [w, bond] of b[v]) if (owner[w] < 0) count(theirs, second.labels[w], bond);
        cost += unmatched(ours, theirs);
      }
    }
    for (let v = 0; v < m; v++) {
      if (owner[v] >= 0) continue;
      for (const [w, bond] of b[v]) {
        if (w > v && owner[w] < 0) count(outer, pair(second.labels[v], second.labels[w]), bond);
      }
    }
    return cost + unmatched(inner, outer);
  }

  /** The cost of edges between u, matched with v, and the vertices decided before. */
  function added(u, v) {
    let cost = 0;
    for (const [w, bond] of a[u]) {
      if (image[w] === -2) continue;
      const other = v >= 0 && image[w] >= 0 ? b[v].get(image[w]) : undefined;
      if (other !== bond) cost++;
    }
    if (v >= 0) for (const w of b[v].keys()) if (owner[w] >= 0 && !a[u].has(owner[w])) cost++;
    return cost;
  }

  function candidates(u) {
    const list = [];
    const tried = new Set();
    for (let v = 0; v < m; v++) {
      if (owner[v] >= 0 || second.labels[v] !== first.labels[u] || tried.has(twins[v])) continue;
      tried.add(twins[v]);
      list.push([added(u, v), Math.abs(a[u].size - b[v].size), v]);
    }
    list.push([added(u, -1), a[u].size, -1]);
    return list.sort((x, y) => x[0] - y[0] || x[1] - y[1]);
  }

  /** Looks for a matching of cost at most `limit`; returns whether the search came to its end. */
  function search(depth, cost, limit) {
    if (++steps % 64 === 0 && performance.now() > deadline) return false;
    if (depth === n) {
      const total = cost + remaining();
      if (total < best.cost) best = { cost: total, image: Array.from(image) };
      return true;
    }
    const u = order[depth];
    for (const [more, , v] of candidates(u)) {
      if (cost + more > limit || best.cost <= limit) break;
      image[u] = v;
      if (v >= 0) owner[v] = u;
      const open = cost + more + remaining() <= limit;
      const ended = !open || search(depth + 1, cost + more, limit);
      image[u] = -2;
      if (v >= 0) owner[v] = -1;
      if (!ended) return false;
    }
    return true;
  }

  /** A first matching: the best candidate at every step. */
  function greedy() {
    let cost = 0;
    for (const u of order) {
      const [[more, , v]] = candidates(u);
      cost += more;
      image[u] = v;
      if (v >= 0) owner[v] = u;
    }
    best = { cost: cost + remaining(), image: Array.from(image) };
    image.fill(-2);
    owner.fill(-1);
  }

  let lower = remaining();
  greedy();
  while (lower < best.cost && search(0, 0, lower)) {
    if (best.cost > lower) lower++;
  }
  return { distance: best.cost, lower, exact: lower >= best.cost, image: best.image };
}

/** Runs `solveMatching` beside the page, so that the page stays responsive. */
export function matchInWorker(first, second, milliseconds) {
  const code = `onmessage = ({ data }) => postMessage((${solveMatching})(...data));`;
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const worker = new Worker(address);
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage([first, second, milliseconds]);
  }).finally(() => {
    worker.terminate();
    URL.revokeObjectURL(address);
  });
}
