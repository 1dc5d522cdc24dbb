// Draws curves and bars into an SVG, with few round ticks; colours are the stylesheet's.

const SPACE = "http://www.w3.org/2000/svg";
const EDGE = { left: 52, right: 14, top: 12, bottom: 26 };

function add(parent, kind, attributes, text) {
  const made = document.createElementNS(SPACE, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** Round numbers from least to most, some `count` of them. */
export function ticks(least, most, count, whole) {
  const span = most - least || Math.abs(most) || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  let step = [1, 2, 5, 10].map((one) => one * power).find((one) => span / one <= count);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let at = Math.ceil(least / step - 1e-9) * step; at <= most + step * 1e-9; at += step) found.push(at);
  return found;
}

/** A number in few characters: 1.25 M, 0.0312, 1,234. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim((value / 1e6).toFixed(2))} M`;
  if (size >= 1e4) return `${trim((value / 1e3).toFixed(1))} k`;
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size >= 100 || Number.isInteger(value)) return trim(value.toFixed(1));
  return trim(Number(value.toPrecision(3)).toString());
}

const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${trim((seconds / 3600).toFixed(1))} h`;
  return `${trim((seconds / 86400).toFixed(1))} days`;
}

function frame(svg, x, y, horizontal, vertical) {
  const width = Math.max(svg.clientWidth, 120), height = Math.max(svg.clientHeight, 80);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const right = width - EDGE.right, bottom = height - EDGE.bottom;
  const toX = (at) => EDGE.left + ((at - x[0]) / (x[1] - x[0] || 1)) * (right - EDGE.left);
  const toY = (at) => bottom - ((at - y[0]) / (y[1] - y[0] || 1)) * (bottom - EDGE.top);
  for (const at of ticks(y[0], y[1], 5)) {
    add(svg, "line", { class: "grid", x1: EDGE.left, x2: right, y1: toY(at), y2: toY(at) });
    add(svg, "text", { class: "tick", x: EDGE.left - 6, y: toY(at) + 4, "text-anchor": "end" }, vertical(at));
  }
  for (const [at, text] of horizontal) {
    const anchor = toX(at) > right - 12 ? "end" : "middle";
    add(svg, "text", { class: "tick", x: toX(at), y: height - 7, "text-anchor": anchor }, text);
  }
  add(svg, "line", { class: "base", x1: EDGE.left, x2: right, y1: bottom, y2: bottom });
  return { toX, toY, bottom, right, width, height };
}

function empty(svg, text) {
  const width = Math.max(svg.clientWidth, 120), height = Math.max(svg.clientHeight, 80);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  add(svg, "text", { class: "tick", x: width / 2, y: height / 2, "text-anchor": "middle" }, text);
}

/**
 * Curves. `series` are {name, colour, points: [[x, y], ...], smooth, undotted}; `form` writes an x, `from0` begins y at 0.
 * A series of few points has a dot for each, unless `undotted`; of many that are to be smooth, their running mean before them.
 */
export function curves(svg, series, { form = short, from0 = false, nothing = "no result yet" } = {}) {
  const full = series.filter((one) => one.points.length);
  if (!full.length) return empty(svg, nothing);
  const all = full.flatMap((one) => one.points);
  const x = [Math.min(...all.map((one) => one[0])), Math.max(...all.map((one) => one[0]))];
  let y = [Math.min(...all.map((one) => one[1])), Math.max(...all.map((one) => one[1]))];
  if (from0) y[0] = Math.min(0, y[0]);
  const room = (y[1] - y[0] || Math.abs(y[1]) || 1) * 0.06;
  y = [from0 && y[0] === 0 ? 0 : y[0] - room, y[1] + room];
  const across = ticks(x[0], x[1], Math.max(2, Math.min(6, Math.floor(svg.clientWidth / 65))));
  const place = frame(svg, x, y, across.map((at) => [at, form(at)]), short);
  for (const one of full) {
    const path = (points) => points.map(([a, b], index) => (
      `${index ? "L" : "M"}${place.toX(a).toFixed(1)},${place.toY(b).toFixed(1)}`)).join("");
    const smooth = one.smooth && one.points.length > 60;
    if (one.points.length > 1) {
      add(svg, "path", { class: `curve ${one.colour}${smooth ? " pale" : ""}`, d: path(one.points) });
    }
    if (smooth) add(svg, "path", { class: `curve ${one.colour}`, d: path(running(one.points)) });
    if (one.points.length <= (one.undotted ? 1 : 30)) {
      for (const [a, b] of one.points) {
        add(svg, "circle", { class: `dot ${one.colour}`, cx: place.toX(a), cy: place.toY(b), r: 3 });
      }
    }
  }
  const mark = add(svg, "g", { class: "mark" });
  const show = (event) => {
    mark.replaceChildren();
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * place.width;
    const near = full.map((one) => nearest(one.points, at, place.toX)).filter(Boolean);
    if (!near.length || at < EDGE.left - 8) return;
    const spot = place.toX(near[0][0]);
    add(mark, "line", { class: "cross", x1: spot, x2: spot, y1: EDGE.top, y2: place.bottom });
    const lines = [form(near[0][0]), ...near.map((one, index) => `${full[index].name} ${short(one[1])}`)];
    const end = spot > place.width / 2;
    lines.forEach((line, index) => add(mark, "text", {
      class: "read", x: spot + (end ? -7 : 7), y: EDGE.top + 10 + 15 * index, "text-anchor": end ? "end" : "start",
    }, line));
  };
  svg.onpointermove = show;
  svg.onpointerdown = show;
  svg.onpointerleave = () => mark.replaceChildren();
}

/** The running mean over a thirtieth of the points at each side. */
function running(points) {
  const reach = Math.max(2, Math.round(points.length / 30)), sums = [0];
  for (const [, y] of points) sums.push(sums.at(-1) + y);
  return points.map(([x], index) => {
    const first = Math.max(0, index - reach), after = Math.min(points.length, index + reach + 1);
    return [x, (sums[after] - sums[first]) / (after - first)];
  });
}

function nearest(points, at, toX) {
  let best = null;
  for (const one of points) if (!best || Math.abs(toX(one[0]) - at) < Math.abs(toX(best[0]) - at)) best = one;
  return best;
}

/** A bar for each value; `name` writes the number of a bar. */
export function bars(svg, values, { name = String, nothing = "no result yet" } = {}) {
  if (!values.length) return empty(svg, nothing);
  const most = Math.max(...values), places = values.map((_, index) => [index, name(index)]);
  const every = Math.ceil(values.length / 9);
  const place = frame(svg, [-0.6, values.length - 0.4], [0, most * 1.05],
    places.filter(([index]) => index % every === 0), short);
  const width = Math.min(40, 0.7 * (place.toX(1) - place.toX(0)));
  values.forEach((value, index) => {
    const top = place.toY(value);
    const made = add(svg, "rect", {
      class: "bar-of c0", x: place.toX(index) - width / 2, y: top, width, height: Math.max(place.bottom - top, 0), rx: 2,
    });
    add(made, "title", {}, `staleness ${name(index)}: ${value} results`);
  });
}
