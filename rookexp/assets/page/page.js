const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}
function element(name, attributes, parent) {
  const made = Object.assign(document.createElement(name), attributes);
  if (parent) parent.append(made);
  return made;
}

// Tables: a press on a heading sorts by it, numbers as numbers and what is missing last; a second press turns it round.
const order = new Intl.Collator(undefined, { numeric: true });
function sort(heading) {
  const table = heading.closest("table"), column = heading.cellIndex, body = table.tBodies[0];
  const down = heading.getAttribute("aria-sort") === "descending";
  const first = heading.getAttribute("aria-sort") === null && ["↑"].some((sign) => heading.textContent.includes(sign));
  const way = down || (heading.getAttribute("aria-sort") === null && !first) ? 1 : -1;
  all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
  const rows = [...body.rows].map((row) => [row.cells[column].dataset.sort, row]);
  rows.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = Number(a), y = Number(b);
    return way * (Number.isNaN(x) || Number.isNaN(y) ? order.compare(a, b) : x - y);
  });
  body.append(...rows.map(([, row]) => row));
}
all("thead button").forEach((button) => { button.onclick = () => sort(button.closest("th")); });

// A row stays if it has every word, and its column passes every comparison such as gain>0.5.
function filter(input) {
  const table = document.getElementById(input.dataset.filter);
  const plain = (text) => text.toLowerCase().replace(/[^a-z0-9/.]/g, "");
  const keys = all("thead th", table).map((heading) => [plain(heading.dataset.key), plain(heading.textContent)]);
  const unknown = [];
  const tests = input.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [, key, sign, limit] = word.match(/^([^<>]+)([<>])(-?[\d.]+(?:e-?\d+)?)$/) || [];
    const column = key === undefined ? -1
      : keys.findIndex((names) => names.some((name) => name === plain(key) || name.endsWith("." + plain(key))));
    if (key !== undefined && column < 0) unknown.push(key);
    if (column < 0) return (row) => row.textContent.toLowerCase().includes(word);
    return (row) => {
      const text = row.cells[column].dataset.sort;
      return text !== "" && (sign === ">" ? Number(text) > Number(limit) : Number(text) < Number(limit));
    };
  });
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    row.hidden = !tests.every((test) => test(row));
    shown += !row.hidden;
  }
  const total = table.tBodies[0].rows.length;
  document.querySelector(`[data-count="${table.id}"]`).textContent =
    unknown.length ? `no column ${unknown.join(", ")}`
      : (shown === total ? total : `${shown} of ${total}`) + " " + (total === 1 ? table.id.slice(0, -1) : table.id);
}
all("[data-filter]").forEach((input) => { input.oninput = () => filter(input); filter(input); });
all("button[data-view]").forEach((button) => {
  button.onclick = () => {
    document.getElementById("points").dataset.view = button.dataset.view;
    all("button[data-view]").forEach((other) => other.setAttribute("aria-pressed", other === button));
  };
});

// Curves: the chosen points in colour, the others in grey behind them.
const WIDE = 420, HIGH = 230, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 24;
const chosen = new Map();  // point -> number of its colour; 0 is the baseline's
const colour = (point) => `var(--c${chosen.get(point)})`;
function choose(points) {
  chosen.clear();
  chosen.set(data.baseline, 0);
  points.forEach((point) => add(point));
  if (!points.includes(data.baseline)) chosen.delete(data.baseline);
}
function add(point) {
  if (point === data.baseline) { chosen.set(point, 0); return; }
  const used = [...chosen.values()];
  const counts = [1, 2, 3, 4, 5, 6, 7].map((n) => used.filter((other) => other === n).length);
  if (!chosen.has(point)) chosen.set(point, 1 + counts.indexOf(Math.min(...counts)));
}
const number = (value, digits = 3) => Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
function labels(values) {  // of an axis: as many digits as say where each stands
  const near = values.length > 1 ? (values[1] - values[0]) / 100 : Infinity;
  const texts = (digits) => values.map((value) => number(value, digits));
  for (let digits = 3; digits < 15; digits += 1) {
    if (texts(digits).every((text, i) => Math.abs(Number(text) - values[i]) <= near)) return texts(digits);
  }
  return texts(15);
}
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p += 1) {
    for (const n of [1, 2, 5]) if (n * 10 ** p >= low && n * 10 ** p <= high) found.push(n * 10 ** p);
  }
  if (found.length < 3) return ticks(low, high, 4);
  return found.length > 6 ? found.filter((value) => /^1/.test(value.toExponential())) : found;
}
function draw(panel, holder) {
  const mine = panel.curves.filter((curve) => chosen.has(curve.p));
  const seen = mine.length ? mine : panel.curves;
  let ys = seen.flatMap((curve) => [...curve.y, ...(curve.lo || []), ...(curve.hi || [])]);
  const log = panel.log && ys.some((y) => y > 0);
  if (log) ys = ys.filter((y) => y > 0);
  const xs = seen.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (y0 === 0 && y1 === 0) y1 = 1;
  else if (y0 === y1) [y0, y1] = log ? [y0 / 2, y1 * 2] : [y0 - 0.5 * Math.abs(y0), y1 + 0.5 * Math.abs(y1)];
  const scale = log ? Math.log : (value) => value;
  const margin = 0.04 * (scale(y1) - scale(y0));
  const [s0, s1] = [scale(y0) - margin, scale(y1) + margin];
  const atX = (x) => LEFT + (WIDE - LEFT - RIGHT) * (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5);
  const atY = (y) => HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * ((log ? Math.log(Math.max(y, y0 / 10)) : y) - s0) / (s1 - s0);
  const path = (x, y) => x.map((value, i) => `${i ? "L" : "M"}${atX(value).toFixed(1)} ${atY(y[i]).toFixed(1)}`).join("");

  holder.replaceChildren();
  const heading = element("h3", { textContent: panel.title + " " }, holder);
  const bins = Math.max(...panel.curves.map((curve) => curve.bin));
  element("small", { textContent: panel.unit + ", over steps" + (bins > 1 ? `, bins of ${bins} steps` : "") }, heading);
  const plot = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${panel.title} over steps` }, holder);
  const clip = svg("clipPath", { id: `clip-${panel.title.replace(/\W/g, "")}` }, plot);
  svg("rect", { x: LEFT, y: TOP - 3, width: WIDE - LEFT - RIGHT, height: HIGH - TOP - BOTTOM + 6 }, clip);
  const rows = log ? logTicks(Math.exp(s0), Math.exp(s1)) : ticks(s0, s1, 5), named = labels(rows);
  rows.forEach((y, i) => {
    svg("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: atY(y), y2: atY(y) }, plot);
    svg("text", { x: LEFT - 5, y: atY(y) + 4, "text-anchor": "end" }, plot).textContent = named[i];
  });
  const whole = (x) => Math.abs(x - Math.round(x)) < 1e-9;  // there are no half steps
  for (const x of x1 > x0 ? ticks(x0, x1, 6).filter(whole) : [x0]) {
    svg("text", { x: atX(x), y: HIGH - 8, "text-anchor": "middle" }, plot).textContent = Math.round(x);
  }
  const inner = svg("g", { "clip-path": `url(#${clip.id})` }, plot);
  for (const curve of panel.curves) if (!chosen.has(curve.p)) svg("path", { class: "other", d: path(curve.x, curve.y) }, inner);
  for (const curve of mine) {
    if (!curve.lo) continue;
    const back = path([...curve.x].reverse(), [...curve.lo].reverse()).replace("M", "L");
    svg("path", { class: "band", d: path(curve.x, curve.hi) + back + "Z", style: `fill:${colour(curve.p)}` }, inner);
  }
  for (const curve of mine) {
    const line = { class: curve.cut ? "line cut" : "line", style: `stroke:${colour(curve.p)}` };
    if (curve.x.length > 1) svg("path", { ...line, d: path(curve.x, curve.y) }, inner);
    else svg("circle", { cx: atX(curve.x[0]), cy: atY(curve.y[0]), r: 2.5, style: `fill:${colour(curve.p)}` }, inner);
  }

  // Curves that hide each other, of which only the last can be seen.
  const places = new Map();
  for (const curve of mine) {
    const at = path(curve.x, curve.y);
    places.set(at, (places.get(at) || new Set()).add(data.names[curve.p]));
  }
  const hidden = [...places.values()].filter((names) => names.size > 1).map((names) => [...names].join(", "));
  if (hidden.length) element("p", { className: "hint", textContent: `on top of each other: ${hidden.join("; ")}` }, holder);

  // The values at the step under the pointer.
  const at = svg("line", { class: "at", y1: TOP, y2: HIGH - BOTTOM, visibility: "hidden" }, plot);
  const tip = element("div", { className: "tip", hidden: true }, holder);
  plot.onpointermove = (event) => {
    const box = plot.getBoundingClientRect();
    const x = x0 + (x1 - x0) * ((event.clientX - box.left) / box.width * WIDE - LEFT) / (WIDE - LEFT - RIGHT);
    const found = mine.map((curve) => {
      let i = 0;
      curve.x.forEach((value, j) => { if (Math.abs(value - x) < Math.abs(curve.x[i] - x)) i = j; });
      return { curve, i };
    });
    if (!found.length) return;
    const step = found[0].curve.x[found[0].i];
    at.setAttribute("x1", atX(step));
    at.setAttribute("x2", atX(step));
    at.setAttribute("visibility", "visible");
    tip.replaceChildren(element("div", { textContent: `step ${Number(step.toFixed(1))}` }));
    found.sort((a, b) => b.curve.y[b.i] - a.curve.y[a.i]);
    for (const { curve, i } of found.slice(0, 12)) {
      const row = element("div", {}, tip);
      element("i", {}, row).style.background = colour(curve.p);
      const range = curve.lo ? ` (${number(curve.lo[i])} to ${number(curve.hi[i])}, n ${curve.n})` : "";
      row.append(`${data.names[curve.p]}  ${number(curve.y[i])}${range}${curve.cut ? ", did not finish" : ""}`);
    }
    if (found.length > 12) element("div", { textContent: `and ${found.length - 12} more` }, tip);
    tip.hidden = false;
    const left = event.clientX - box.left;
    tip.style.left = left > box.width / 2 ? "" : `${left + 24}px`;
    tip.style.right = left > box.width / 2 ? `${box.width - left + 16}px` : "";
    tip.style.top = "2.6rem";
  };
  plot.onpointerleave = () => { tip.hidden = true; at.setAttribute("visibility", "hidden"); };
}
const panels = document.getElementById("panels");
const holders = data.panels.map(() => element("div", { className: "panel" }, panels));
function redraw() {
  data.panels.forEach((panel, i) => draw(panel, holders[i]));
  all("[data-point]").forEach((box) => { box.checked = chosen.has(Number(box.dataset.point)); });
  document.getElementById("key").replaceChildren(...[...chosen.keys()].map((point) => {
    const item = element("span", { title: data.about[point] });
    element("i", {}, item).style.background = colour(point);
    item.append(data.names[point] + (point === data.baseline ? " (baseline)" : ""));
    return item;
  }));
}
all("[data-point]").forEach((box) => {
  box.onchange = () => {
    const point = Number(box.dataset.point);
    if (box.checked) add(point); else chosen.delete(point);
    redraw();
  };
});
document.getElementById("best").onclick = () => { choose(data.drawn); redraw(); };
document.getElementById("none").onclick = () => { choose([data.baseline]); redraw(); };
choose(data.drawn);
redraw();

// Answers: three columns, each of any point, the same prompts in each.
const pick = document.getElementById("pick"), shown = document.getElementById("answers");
const columns = [0, 1, 2].filter((i) => i < data.answers.length);
const selects = columns.map((i) => {
  const label = element("label", { textContent: ["left", "middle", "right"][i] + " " }, pick);
  const select = element("select", { onchange: showAnswers }, label);
  data.answers.forEach((answers, j) => element("option", { value: j, textContent: answers.label, selected: i === j }, select));
  return select;
});
function showAnswers() {
  shown.replaceChildren();
  if (!data.answers.length) element("p", { textContent: "No greedy answers were logged." }, shown);
  data.prompts.forEach((prompt, i) => {
    const block = element("div", { className: "prompt" }, shown);
    element("code", { textContent: prompt.text }, block);
    const cards = element("div", { className: "cards" }, block);
    for (const select of selects) {
      const answers = data.answers[select.value], row = answers.rows[i];
      const card = element("div", { className: "card" }, cards);
      element("b", { textContent: answers.label }, card);
      if (!row) { element("p", { textContent: "was not asked this" }, card); continue; }
      if (prompt.pieces && row.arrows !== undefined) {
        const board = svg("svg", { viewBox: "0 0 360 360", role: "img", "aria-label": row.words }, card);
        board.innerHTML = '<use href="#squares"/>' + prompt.pieces + row.arrows;
        element("p", { textContent: row.words }, card);
      }
      element("p", { textContent: "reward " + (row.reward === null ? "–" : number(row.reward)) }, card);
      element("p", { className: "text", textContent: row.text || "(empty)" }, card);
    }
  });
}
showAnswers();
