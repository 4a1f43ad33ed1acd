"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const T = data.tokens.length;
const LEAST_LINE = 0.02;      // weights below are not drawn as lines
const MOST_FANNED = 64;       // up to so many rows, the lines of all queries are drawn faintly
const MOST_CELLS = 128;       // rows and columns of a picture; beyond, it is drawn in blocks
const state = { layer: data.chosen[0], head: data.chosen[1], t: 0, s: 0, scale: true, mask: true };

const at = (id) => document.getElementById(id);
const element = (tag, text = "", name = "") => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  return made;
};
const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1%" : `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`);
const number = (x, digits = 3) => {
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  const isTiny = x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits;
  return (isTiny ? x.toExponential(1) : x.toFixed(digits)).replaceAll("-", "−");
};

// Numbers: bytes as text to typed arrays

const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

function unpack(packed) {
  const codes = new Int16Array(bytes(packed.codes).buffer);
  return { rows: T, width: codes.length / T, values: Float32Array.from(codes, (code) => code * packed.step) };
}

const maps = bytes(data.maps);

/** The pooled map of a head, n x n, from the lower triangles of roots that the file holds. */
function pooledMap(layer, head) {
  const n = data.starts.length;
  const from = (layer * data.heads + head) * (n * (n + 1)) / 2;
  const weights = new Float32Array(n * n);
  for (let t = 0, code = from; t < n; t++) for (let s = 0; s <= t; s++) weights[t * n + s] = (maps[code++] / 255) ** 2;
  return { n, weights };
}

// The formula, a step a function

/** Q K^T: the product of every query with every key. */
function products({ q, k }) {
  const scores = new Float32Array(T * T);
  for (let t = 0; t < T; t++) for (let s = 0; s < T; s++) {
    let sum = 0;
    for (let d = 0; d < q.width; d++) sum += q.values[t * q.width + d] * k.values[s * q.width + d];
    scores[t * T + s] = sum;
  }
  return scores;
}

const cap = (score, rules) => (rules.softcap ? rules.softcap * Math.tanh(score / rules.softcap) : score);
const mayAttend = (t, s, rules) => s <= t && (!rules.window || t - s < rules.window);

/** Each row's exponentials over their sum, which a learned sink enters too. */
function softmax(scores, rules) {
  const weights = new Float32Array(T * T);
  for (let t = 0; t < T; t++) {
    const row = scores.subarray(t * T, (t + 1) * T);
    let highest = rules.sink ?? -Infinity;
    for (const score of row) highest = Math.max(highest, score);
    let total = rules.sink === undefined ? 0 : Math.exp(rules.sink - highest);
    for (let s = 0; s < T; s++) total += weights[t * T + s] = Math.exp(row[s] - highest);
    for (let s = 0; s < T; s++) weights[t * T + s] /= total;
  }
  return weights;
}

/** The mean of the values, each as much as its weight. */
function mix(weights, { v }) {
  const output = new Float32Array(T * v.width);
  for (let t = 0; t < T; t++) for (let s = 0; s < T; s++) {
    const weight = weights[t * T + s];
    if (weight) for (let d = 0; d < v.width; d++) output[t * v.width + d] += weight * v.values[s * v.width + d];
  }
  return { rows: T, width: v.width, values: output };
}

function run(numbers, raw, { scale, mask }) {
  const rules = numbers.rules;
  const scaled = raw.map((score) => cap(score * (scale ? rules.scale : 1), rules));
  const masked = mask ? scaled.map((score, i) => (mayAttend(Math.floor(i / T), i % T, rules) ? score : -Infinity)) : scaled;
  const weights = softmax(masked, rules);
  return { scaled, masked, weights, output: mix(weights, numbers), meters: measure(masked, weights) };
}

/** Variance of the scores that enter the softmax, entropy of the weights, weight on later tokens. */
function measure(scores, weights) {
  let count = 0, sum = 0, squares = 0, entropy = 0, future = 0;
  for (let t = 0; t < T; t++) for (let s = 0; s < T; s++) {
    const score = scores[t * T + s], weight = weights[t * T + s];
    if (score > -Infinity) { count++; sum += score; squares += score * score; }
    if (weight > 0) entropy -= weight * Math.log2(weight) / T;
    if (s > t) future += weight / T;
  }
  return { variance: squares / count - (sum / count) ** 2, entropy: entropy + 0, future };
}

// What is shown: one head's numbers where the file has them, its pooled map where not

let shown;

function load(layer, head) {
  const name = `${layer}.${head}`;
  const g = Math.floor(head * data.groups / data.heads);
  if (!(name in data.queries)) return { ...pooledMap(layer, head), numbers: null };
  const [k, v] = data.keyValues[`${layer}.${g}`].map(unpack);
  const numbers = { q: unpack(data.queries[name]), k, v, rules: data.rules[name] };
  const raw = products(numbers);
  return { n: T, numbers, raw, own: run(numbers, raw, { scale: true, mask: true }) };
}

function recompute() {
  if (!shown.numbers) return;
  const isOwn = state.scale && state.mask;
  shown.now = isOwn ? shown.own : run(shown.numbers, shown.raw, state);
  shown.weights = shown.now.weights;
}

const labels = () => (shown.n === T ? data.tokens : data.starts.map((start) => `${data.tokens[start]}…`));
const place = (row) => (shown.n === T ? row : data.starts[row]);
const weight = (t, s) => shown.weights[t * shown.n + s];
const strongest = (t) => {
  let best = 0;
  for (let s = 1; s < shown.n; s++) if (weight(t, s) > weight(t, best)) best = s;
  return best;
};

// Colours, from the page's own

let palette;

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
  };
  palette = Object.fromEntries(["low", "middle", "high", "plus", "minus", "paper", "mark"].map((one) => [one, colour(`--${one}`)]));
}

const between = (one, other, share) => one.map((x, i) => x + (other[i] - x) * share);

/** From hardly to all; the root lets small weights be told from none. */
function weightColour(share) {
  const x = Math.sqrt(Math.min(1, share));
  return x < 0.5 ? between(palette.low, palette.middle, 2 * x) : between(palette.middle, palette.high, 2 * x - 1);
}

const signColour = (x, most) => between(palette.paper, x < 0 ? palette.minus : palette.plus, Math.sqrt(Math.abs(x) / most || 0));

/** Paint rows x columns of values; what `colour` gives no colour stays open. */
function paint(canvas, rows, columns, colour) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const found = colour(Math.floor(i / columns), i % columns);
    if (found) image.data.set([...found, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** Blocks of rows, and of as many columns in a square, where there are more than a picture shows. */
function blocksOf(rows, width) {
  const block = Math.ceil(rows / MOST_CELLS), across = rows === width ? block : 1;
  return { block, across, high: Math.ceil(rows / block), wide: Math.ceil(width / across) };
}

/** Weights by blocks: summed over the keys, averaged over the queries, so that rows still sum to 1. */
function pool(weights, n) {
  const { block, high } = blocksOf(n, n), pooled = new Float32Array(high * high);
  if (block === 1) return weights;
  for (let t = 0; t < n; t++) {
    const row = Math.floor(t / block), inRow = Math.min(block, n - row * block);
    for (let s = 0; s < n; s++) pooled[row * high + Math.floor(s / block)] += weights[t * n + s] / inRow;
  }
  return pooled;
}

/** Numbers by blocks: the mean of those that are finite. */
function average({ rows, width, values }) {
  const { block, across, high, wide } = blocksOf(rows, width);
  if (block === 1) return values;
  const sums = new Float32Array(high * wide), counts = new Float32Array(high * wide);
  for (let i = 0; i < rows; i++) for (let j = 0; j < width; j++) {
    const value = values[i * width + j], cell = Math.floor(i / block) * wide + Math.floor(j / across);
    if (Number.isFinite(value)) { sums[cell] += value; counts[cell]++; }
  }
  return sums.map((sum, cell) => (counts[cell] ? sum / counts[cell] : -Infinity));
}

function paintWeights(canvas, weights, n) {
  const { block, high } = blocksOf(n, n), pooled = pool(weights, n);
  paint(canvas, high, high, (t, s) => {
    const share = pooled[t * high + s];
    return s > t && (state.mask || !share) ? null : weightColour(share);
  });
  return { cells: high, block };
}

function paintNumbers(canvas, numbers) {
  const { block, high, wide } = blocksOf(numbers.rows, numbers.width), values = average(numbers);
  let most = 0;
  for (const x of values) if (Number.isFinite(x)) most = Math.max(most, Math.abs(x));
  paint(canvas, high, wide, (i, j) => (values[i * wide + j] > -Infinity ? signColour(values[i * wide + j], most) : null));
  return { block };
}

// 1. The grid

function buildGrid() {
  const grid = at("grid"), shared = data.heads / data.groups;
  if (shared > 1) {
    grid.append(element("i"));
    for (let g = 0; g < data.groups; g++) {
      const bracket = element("div");
      bracket.style.gridColumn = `span ${shared}`;
      bracket.append(element("div", `key/value head ${g}`, "group-name"), element("div", "", "group"));
      grid.append(bracket);
    }
  }
  grid.append(element("i"));
  for (let head = 0; head < data.heads; head++) grid.append(element("div", `head ${head}`, "number long"), element("div", `${head}`, "number short"));
  for (let layer = 0; layer < data.layers; layer++) {
    grid.append(element("div", `layer ${layer}`, "layer"));
    for (let head = 0; head < data.heads; head++) grid.append(thumbnail(layer, head));
  }
}

function thumbnail(layer, head) {
  const [name, share] = data.labels[layer][head];
  const button = element("button");
  button.dataset.head = `${layer}.${head}`;
  button.title = `layer ${layer}, head ${head}: ${name}${share ? ` ${percent(share)}` : ""}`;
  button.setAttribute("aria-label", button.title);
  const { short: brief } = data.names[name];
  const long = element("span", share ? `${name} ${percent(share)}` : brief && name, "long");
  const short = element("span", brief, "short");
  for (const one of [long, short]) one.dataset.name = name;
  button.append(element("canvas"), long, short);
  button.addEventListener("click", () => { choose(layer, head); at("one").scrollIntoView({ behavior: "smooth", block: "start" }); });
  return button;
}

function paintGrid() {
  for (const button of document.querySelectorAll("#grid button")) {
    const { n, weights } = pooledMap(...button.dataset.head.split(".").map(Number));
    paint(button.firstChild, n, n, (t, s) => (s > t ? null : weightColour(weights[t * n + s])));
  }
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  for (const one of document.querySelectorAll("[data-name]")) one.style.color = data.names[one.dataset.name][isDark ? "dark" : "light"];
}

function buildLegend() {
  const used = new Set(data.labels.flat().map(([name]) => name));
  for (const [name, { meaning }] of Object.entries(data.names)) {
    if (!used.has(name) || !data.names[name].short) continue;
    const item = element("li"), title = element("b", name);
    title.dataset.name = name;
    item.append(title, meaning);
    at("legend").append(item);
  }
}

// 2. One head

function choose(layer, head) {
  Object.assign(state, { layer, head });
  const before = shown?.n;
  shown = load(layer, head);
  recompute();
  if (before !== shown.n) {
    state.t = shown.n - 1;
    buildLines();
  }
  state.s = strongest(state.t);
  for (const button of document.querySelectorAll("#grid button")) button.setAttribute("aria-pressed", button.dataset.head === `${layer}.${head}`);
  const [name, share, even] = data.labels[layer][head];
  at("head-name").textContent = `Layer ${layer}, head ${head}${data.names[name].short ? `: ${name}` : ""}`;
  at("head-says").textContent = share
    ? `${percent(share)} of its attention lies on ${data.names[name].meaning}; even attention would put ${percent(even)} there.`
    : `It looks at ${data.names[name].meaning}.`;
  if (!data.names[name].short) at("head-says").textContent = "The text is too short to tell what its heads do.";
  at("steps").hidden = !shown.numbers;
  at("no-numbers").hidden = Boolean(shown.numbers);
  at("again").textContent = `qkv attend … --layer ${layer} --head ${head} --out heads.html`;
  showAll();
  const [box, row] = [document.querySelector(".tall"), at("queries").children[state.t]];
  box.scrollTop = row.offsetTop - (box.clientHeight - row.offsetHeight) / 2;
}

function showAll() {
  paintMap();
  showPin();
  if (shown.numbers) showSteps();
}

function buildLines() {
  for (const [id, side] of [["queries", "t"], ["keys", "s"]]) {
    const rows = labels().map((label, i) => {
      const button = element("button", label);
      button.addEventListener("mouseenter", () => fan(side, i));
      button.addEventListener("focus", () => fan(side, i));
      button.addEventListener("mouseleave", () => fan("t", state.t));
      button.addEventListener("click", () => pin(side === "t" ? i : state.t, side === "t" ? strongest(i) : i));
      return button;
    });
    at(id).replaceChildren(...rows);
  }
}

function pin(t, s) {
  Object.assign(state, { t, s });
  paintMap();
  showPin();
  if (shown.numbers) showCell();
}

function showPin() {
  fan("t", state.t);
  sayWeight(state.t, state.s);
}

function sayWeight(t, s) {
  at("pinned").textContent = `“${labels()[t]}” (${place(t)}) puts ${percent(weight(t, s))} of its attention on “${labels()[s]}” (${place(s)}).`;
}

/** Draw the lines of one query, or of all queries to one key, over the faint ones of the rest. */
function fan(side, i) {
  const n = shown.n, svg = document.querySelector("#lines svg"), rows = at("queries").children;
  const y = (row) => rows[row].offsetTop + rows[row].offsetHeight / 2;
  const wide = svg.getBoundingClientRect().width;
  const lines = [];
  const line = (t, s, strength, colour) => lines.push(
    `<path d="M0 ${y(t)} C${wide / 2} ${y(t)} ${wide / 2} ${y(s)} ${wide} ${y(s)}" fill="none" stroke="var(--${colour})" stroke-width="${0.6 + 3.4 * weight(t, s)}" stroke-opacity="${strength}"/>`);
  if (n <= MOST_FANNED) for (let t = 0; t < n; t++) for (let s = 0; s < n; s++) if (weight(t, s) >= LEAST_LINE) line(t, s, 0.22 * Math.sqrt(weight(t, s)), "soft");
  for (let j = 0; j < n; j++) {
    const [t, s] = side === "t" ? [i, j] : [j, i];
    if (weight(t, s) >= LEAST_LINE) line(t, s, 0.25 + 0.75 * Math.sqrt(weight(t, s)), "middle");
  }
  svg.innerHTML = lines.join("");
  const names = labels();
  for (let j = 0; j < n; j++) {
    const query = rows[j], key = at("keys").children[j];
    query.classList.toggle("on", side === "t" && j === i);
    key.classList.toggle("on", side === "s" && j === i);
    mark(query, names[j], side === "s" ? weight(j, i) : null);
    mark(key, names[j], side === "t" ? weight(i, j) : null);
  }
}

/** Shade a token by the weight it gives or gets, and say it behind the token. */
function mark(button, name, share) {
  const isDrawn = share !== null && share >= LEAST_LINE;
  button.style.background = isDrawn ? `color-mix(in srgb, var(--middle) ${Math.round(70 * Math.sqrt(share))}%, transparent)` : "";
  button.replaceChildren(name);
  if (isDrawn) button.append(element("small", ` ${percent(share)}`));
}

function paintMap() {
  const canvas = at("map");
  const { cells, block } = paintWeights(canvas, shown.weights, shown.n);
  const tokens = block * (shown.n === T ? 1 : data.starts[1]);
  at("map-says").textContent = tokens > 1 ? `A cell is ${tokens} × ${tokens} tokens, summed over the keys, averaged over the queries.` : "";
  cross(canvas, Math.floor(state.t / block), Math.floor(state.s / block));
  onCell(canvas, (x, y) => {
    const t = Math.min(shown.n - 1, Math.floor(y * cells) * block), s = Math.min(shown.n - 1, Math.floor(x * cells) * block);
    return [t, s];
  });
}

/** Let a press choose the cell under it, and pointing show its arithmetic meanwhile. */
function onCell(canvas, cellAt) {
  const find = (event) => {
    const box = canvas.getBoundingClientRect();
    const within = (x) => Math.min(0.9999, Math.max(0, x));
    return cellAt(within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height));
  };
  let pointed = "";
  canvas.onclick = (event) => pin(...find(event));
  canvas.onmousemove = (event) => {
    const cell = find(event);
    if (pointed !== `${cell}`) tell(canvas, ...cell);
    pointed = `${cell}`;
  };
  canvas.onmouseleave = () => {
    pointed = "";
    tell(canvas, state.t, state.s);
  };
}

/** Say all that there is about one cell, without choosing it. */
function tell(canvas, t, s) {
  const names = labels(), cell = t * T + s;
  sayWeight(t, s);
  canvas.title = `${names[t]} (${place(t)}) → ${names[s]} (${place(s)}): ${percent(weight(t, s))}`;
  if (!shown.numbers) return;
  canvas.title += ` = softmax of ${number(shown.now.masked[cell])}, from q · k = ${number(shown.raw[cell])}`;
  showWork(t, s);
}

/** Frame the chosen cell, or row where there is no column, on the picture drawn anew at the screen's size. */
function cross(canvas, row, column) {
  const small = Object.assign(element("canvas"), { width: canvas.width, height: canvas.height });
  small.getContext("2d").drawImage(canvas, 0, 0);
  const size = Math.max(1, Math.round(720 / Math.max(canvas.width, canvas.height)));
  const [columns, rows] = [canvas.width, canvas.height];
  canvas.width = columns * size;
  canvas.height = rows * size;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  context.strokeStyle = `rgb(${palette.mark})`;
  context.lineWidth = Math.max(2, size / 6);
  if (column === null) context.strokeRect(1, row * size, canvas.width - 2, size);
  else context.strokeRect(column * size, row * size, size, size);
}

// 3. Step by step

function showSteps() {
  const { rules } = shown.numbers, root = 1 / Math.sqrt(shown.numbers.q.width);
  const isRoot = Math.abs(rules.scale - root) < 1e-6 * root;
  at("scale-value").textContent = isRoot ? `1/√${shown.numbers.q.width} = ${number(rules.scale, 4)}` : number(rules.scale, 4);
  showMeters();
  showCell();
}

function showMeters() {
  const { now, own } = shown;
  const even = Array.from({ length: T }, (_, t) => Math.log2(t + 1)).reduce((a, b) => a + b) / T;
  at("meters").replaceChildren(
    meter("variance of the scores", now.meters.variance, own.meters.variance, 4 * Math.max(own.meters.variance, 0.25), (x) => number(x, 2),
      "Large scores leave the softmax one winner, and its gradient nothing."),
    meter("entropy of the weights", now.meters.entropy, own.meters.entropy, Math.max(even, Math.log2(T)), (x) => `${number(x, 2)} bits`,
      `Even attention to all that may be seen: ${number(even, 2)} bits.`),
    meter("weight on the future", now.meters.future, own.meters.future, 1, percent,
      "A model that sees the next token while it learns, learns to copy it."));
}

function meter(name, value, own, most, say, why) {
  const box = element("div", name, "meter"), bar = element("div", "", "bar"), fill = element("i"), tick = element("u");
  fill.style.width = `${100 * Math.min(1, value / most)}%`;
  tick.style.left = `calc(${100 * Math.min(1, own / most)}% - 1px)`;
  bar.append(fill, tick);
  box.append(element("strong", say(value)), bar, element("span", `the model's own: ${say(own)}. ${why}`, "soft"));
  return box;
}

function showCell() {
  showStages();
  showWork(state.t, state.s);
}

/** Every product and sum of one cell. */
function showWork(t, s) {
  showProducts(t, s);
  showArithmetic(t, s);
}

function showStages() {
  const { q, k, v } = shown.numbers, { t, s } = state, { raw, now } = shown, cell = t * T + s;
  const pair = (x, y) => [Math.min(T - 1, Math.floor(y * T)), Math.min(T - 1, Math.floor(x * T))];
  const rowOnly = (side) => (x, y) => { const row = Math.min(T - 1, Math.floor(y * T)); return side === "t" ? [row, state.s] : [state.t, row]; };
  at("stages").replaceChildren(
    stage("Q", `${T} queries of ${q.width}`, q, t, null, rowOnly("t")),
    stage("K", `${T} keys of ${k.width}`, k, s, null, rowOnly("s")),
    stage("Q Kᵀ", `${number(raw[cell])}`, square(raw), t, s, pair),
    stage(shown.numbers.rules.softcap ? "scale, cap" : "scale", `${number(now.scaled[cell])}`, square(now.scaled), t, s, pair, !state.scale),
    stage("mask", `${number(now.masked[cell])}`, square(now.masked), t, s, pair, !state.mask),
    stage("softmax", percent(now.weights[cell]), square(now.weights, true), t, s, pair),
    stage("V", `${T} values of ${v.width}`, v, s, null, rowOnly("s")),
    stage("softmax · V", "what the head hands on", now.output, t, null, rowOnly("t")));
}

const square = (values, areWeights = false) => ({ rows: T, width: T, values, areWeights });

/** One step: its name, its picture with the chosen row or cell, its number there. A column of null is a whole row. */
function stage(name, says, numbers, row, column, cellAt, isOff = false) {
  const box = element("div", "", isOff ? "stage off" : "stage"), canvas = element("canvas");
  const { block } = numbers.areWeights ? paintWeights(canvas, numbers.values, T) : paintNumbers(canvas, numbers);
  cross(canvas, Math.floor(row / block), column === null ? null : Math.floor(column / block));
  onCell(canvas, cellAt);
  box.append(element("b", isOff ? `${name}: off` : name), canvas, element("span", says));
  return box;
}

/** Every product of the query's numbers with the key's. */
function showProducts(t, s) {
  const { q, k } = shown.numbers, D = q.width;
  at("cell-says").textContent = `Query “${data.tokens[t]}” (${t}) and key “${data.tokens[s]}” (${s}), both turned by their positions where the model does so: ${D} products, and their sum.`;
  const cells = Array.from({ length: D }, (_, d) => {
    const [a, b] = [q.values[t * D + d], k.values[s * D + d]];
    const cell = element("div", `${number(a, 2)}\n×${number(b, 2)}\n`);
    cell.append(element("span", `=${number(a * b, 2)}`, a * b < 0 ? "minus" : "plus"));
    return cell;
  });
  at("products").replaceChildren(...cells);
}

function showArithmetic(t, s) {
  const { v, rules } = shown.numbers, { raw, now } = shown, cell = t * T + s;
  const factor = state.scale ? rules.scale : 1;
  const row = now.masked.subarray(t * T, (t + 1) * T);
  const highest = Math.max(rules.sink ?? -Infinity, ...row);
  const total = row.reduce((sum, score) => sum + Math.exp(score - highest), rules.sink === undefined ? 0 : Math.exp(rules.sink - highest));
  const seen = row.filter((score) => score > -Infinity).length;
  const lines = [
    `q · k = ${number(raw[cell])}, the sum of the products above`,
    `scale${state.scale ? "" : " (off)"}: ${number(raw[cell])} × ${number(factor, 4)} = ${number(raw[cell] * factor)}` +
      (rules.softcap ? `, capped: ${rules.softcap} tanh(${number(raw[cell] * factor)}/${rules.softcap}) = ${number(now.scaled[cell])}` : ""),
    `mask${state.mask ? "" : " (off)"}: key ${s} ${s <= t ? "is not after" : "is after"} query ${t}, ${maskSays(now.masked[cell], s <= t)}`,
    `softmax: e^(${number(now.masked[cell])} − ${number(highest)}) = ${number(Math.exp(now.masked[cell] - highest), 4)}, over ${number(total, 4)}, the sum of ${seen} such${rules.sink === undefined ? "" : " and the sink"}: ${percent(now.weights[cell])}`,
    outputLine(v, now, t),
  ];
  at("arithmetic").replaceChildren(...lines.map((line) => element("li", line)));
}

function maskSays(score, isPast) {
  if (score === -Infinity) return isPast ? "but outside the window: −∞" : "so the score becomes −∞";
  return isPast ? "so the score stays" : "and is seen all the same";
}

/** How the largest number of the head's output comes about: the keys that give most to it, and the rest. */
function outputLine(v, now, t) {
  const output = now.output.values.subarray(t * v.width, (t + 1) * v.width);
  let d = 0;
  for (let other = 1; other < v.width; other++) if (Math.abs(output[other]) > Math.abs(output[d])) d = other;
  const terms = Array.from({ length: T }, (_, s) => ({ weight: now.weights[t * T + s], value: v.values[s * v.width + d] }));
  terms.sort((one, other) => Math.abs(other.weight * other.value) - Math.abs(one.weight * one.value));
  const [first, rest] = [terms.slice(0, 4), terms.slice(4)];
  const others = rest.reduce((sum, { weight, value }) => sum + weight * value, 0);
  const said = first.map(({ weight, value }) => `${percent(weight)} × ${number(value, 2)}`).join(" + ");
  return `· V: the output's largest number, ${d} of ${v.width}: ${said}${rest.length ? ` + ${number(others)} from the other keys` : ""} = ${number(output[d])}`;
}

// Begin

for (const name of ["scale", "mask"]) {
  at(name).checked = true;
  at(name).addEventListener("change", () => { state[name] = at(name).checked; recompute(); showAll(); });
}
function repaint() {
  readPalette();
  paintGrid();
  if (shown) showAll();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
addEventListener("resize", () => shown && fan("t", state.t));
buildGrid();
buildLegend();
repaint();
choose(...data.chosen);
