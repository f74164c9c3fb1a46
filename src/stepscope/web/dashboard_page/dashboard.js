"use strict";
// Draws the figures of /figures every few seconds without loading the page again. Data becomes text nodes and
// coordinates only, never markup.
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 960, HEIGHT = 280, LEFT = 64, RIGHT = 64, TOP = 12, BOTTOM = 40;
const COLOURS = ["first", "second"];

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

function element(name, kind, ...children) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

function finite(values) { return values.filter((value) => Number.isFinite(value)); }

function extent(values) {
  const known = finite(values);
  if (!known.length) return [0, 1];
  let low = known[0], high = known[0];
  for (const value of known) { if (value < low) low = value; if (value > high) high = value; }
  if (low === high) { const room = Math.abs(low) * 0.05 || 0.5; return [low - room, high + room]; }
  return [low, high];
}

function ticks([low, high], count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function shown(value) {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(+value.toPrecision(4));
}

function moment(value) {
  return value > 1e8 ? new Date(value * 1000).toLocaleTimeString() : shown(value);
}

function draw(place, figure) {
  const title = element("h2", "", figure.layout.title);
  const traces = figure.data.filter((trace) => finite(trace.y).length);
  if (!traces.length) { place.replaceChildren(title, element("div", "empty", "No data yet")); return; }
  const across = extent(traces.flatMap((trace) => trace.x));
  const sides = { y: extent(traces.filter((one) => one.yaxis !== "y2").flatMap((one) => one.y)),
    y2: extent(traces.filter((one) => one.yaxis === "y2").flatMap((one) => one.y)) };
  const x = (value) => LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT);
  const y = (value, side) => HEIGHT - BOTTOM - (value - sides[side][0]) / (sides[side][1] - sides[side][0]) * (HEIGHT - TOP - BOTTOM);
  const image = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  image.append(node("title", {}, figure.layout.title));
  for (const at of ticks(sides.y, 4)) {
    image.append(node("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(at, "y"), y2: y(at, "y") }),
      node("text", { x: LEFT - 8, y: y(at, "y") + 4, "text-anchor": "end" }, shown(at)));
  }
  if (traces.some((trace) => trace.yaxis === "y2")) {
    for (const at of ticks(sides.y2, 4)) image.append(node("text", { x: WIDTH - RIGHT + 8, y: y(at, "y2") + 4 }, shown(at)));
  }
  for (const at of ticks(across, 6)) {
    image.append(node("text", { x: x(at), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, moment(at)));
  }
  traces.forEach((trace, number) => {
    const side = trace.yaxis === "y2" ? "y2" : "y", colour = COLOURS[figure.data.indexOf(trace) % 2];
    let path = "", pen = "M";
    trace.x.forEach((at, row) => {
      if (!Number.isFinite(at) || !Number.isFinite(trace.y[row])) { pen = "M"; return; }
      path += `${pen}${x(at).toFixed(1)} ${y(trace.y[row], side).toFixed(1)}`;
      pen = "L";
      if (trace.mode.includes("markers") && trace.x.length <= 400) {
        image.append(node("circle", { class: colour, cx: x(at).toFixed(1), cy: y(trace.y[row], side).toFixed(1), r: 2.5 }));
      }
    });
    image.append(node("path", { class: `line ${colour}`, d: path, "data-trace": number }));
  });
  const words = traces.map((trace) => {
    const last = finite(trace.y).at(-1);
    const axis = trace.yaxis === "y2" ? figure.layout.yaxis2.title : figure.layout.yaxis.title;
    return element("span", COLOURS[figure.data.indexOf(trace) % 2], `${trace.name}: ${shown(last)} · ${axis}`);
  });
  place.replaceChildren(title, element("div", "legend", ...words), image);
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("/figures", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
    const told = await answer.json();
    document.getElementById("heading").textContent = told.heading;
    document.title = told.heading;
    draw(document.getElementById("loss-graph"), told.loss);
    draw(document.getElementById("resource-graph"), told.resources);
    state.textContent = `updated ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    state.textContent = `no response: ${error.message}; trying again`;
  }
}

const every = Number(document.getElementById("interval-component").dataset.interval);
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, every);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
