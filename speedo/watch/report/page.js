"use strict";
// Values under the pointer, and a line that stands out while its name in a legend is pointed at.
const charts = JSON.parse(document.getElementById("values").textContent);
const said = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

function value(line, x) {
  const xs = line.x;
  if (xs.length === 0 || x < xs[0] || x > xs[xs.length - 1]) {
    return null;
  }
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) { low = middle; } else { high = middle; }
  }
  const a = line.y[low], b = line.y[high];
  if (a === null || b === null) {
    return null;
  }
  return xs[high] === xs[low] ? a : a + (b - a) * (x - xs[low]) / (xs[high] - xs[low]);
}

function follow(name, chart) {
  const svg = document.getElementById(name), figure = svg.closest("figure");
  const tip = document.createElement("div"), cursor = svg.querySelector(".cursor");
  tip.className = "tip";
  figure.append(tip);
  const hide = () => { tip.classList.remove("on"); cursor.classList.remove("on"); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), [left, top, right, bottom] = chart.box;
    const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const x = chart.right * (at - left) / (right - left);
    const rows = chart.lines.map((line) => [line, value(line, x)]).filter((row) => row[1] !== null);
    if (at < left || at > right || rows.length === 0) {
      hide();
      return;
    }
    rows.sort((a, b) => b[1] - a[1]);
    const head = document.createElement("div");
    head.textContent = said.format(x) + " " + chart.across;
    tip.replaceChildren(head, ...rows.map(([line, y]) => {
      const row = document.createElement("div"), label = document.createElement("span");
      const key = document.createElement("i"), figure = document.createElement("b");
      key.className = "c" + line.c;
      label.append(key, line.label);
      figure.textContent = said.format(y);
      row.append(label, figure);
      return row;
    }));
    for (const [end, y] of [["1", top], ["2", bottom]]) {
      cursor.setAttribute("x" + end, at);
      cursor.setAttribute("y" + end, y);
    }
    tip.classList.add("on");
    cursor.classList.add("on");
    const frame = figure.getBoundingClientRect(), wide = tip.offsetWidth;
    let place = event.clientX - frame.left + 14;
    if (place + wide > frame.width) { place = Math.max(4, event.clientX - frame.left - wide - 14); }
    tip.style.left = place + "px";
    tip.style.top = Math.max(4, event.clientY - frame.top - tip.offsetHeight - 10) + "px";
  });
}

for (const [name, chart] of Object.entries(charts)) {
  follow(name, chart);
}
for (const entry of document.querySelectorAll(".legend [data-label]")) {
  const fade = (on) => {
    for (const line of document.querySelectorAll("g.line")) {
      line.classList.toggle("faded", on && line.dataset.label !== entry.dataset.label);
    }
  };
  entry.addEventListener("pointerenter", () => fade(true));
  entry.addEventListener("pointerleave", () => fade(false));
}
