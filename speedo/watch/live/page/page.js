// Follows a run: reads the stream of its state, draws it, and sends what the buttons ask for.

import { bars, curves, duration, short } from "./chart.js";

const SILENT_MS = 10000; // the server is heard of every few seconds; after so long the connection is dead
const AGAIN_MS = [500, 1000, 2000, 4000];
const COLOURS = ["c0", "c1", "c2", "c3", "c4", "c5"];
const byId = (name) => document.getElementById(name);
const store = new Map(); // curves by name: [[iteration, seconds, value], ...]
let now = null, byTime = false, token = takeToken(), tries = 0, wanted = null;

/** The token of the URL, kept for this tab alone; it does not stay in the address or the history. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return given || sessionStorage.getItem("token") || "";
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

// ---------------------------------------------------------------- the stream

async function follow() {
  for (;;) {
    const stop = new AbortController();
    let alive = setTimeout(() => stop.abort(), SILENT_MS);
    try {
      const answer = await fetch("/events", { headers: headers(), signal: stop.signal, cache: "no-store" });
      if (answer.status === 401) {
        const said = (await answer.json()).error;
        if (!token) return connection(said);
        token = ""; // of an earlier server at this port
        sessionStorage.removeItem("token");
        continue;
      }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      store.clear(); // a new connection brings all curves
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(alive);
        alive = setTimeout(() => stop.abort(), SILENT_MS);
        connection("");
        tries = 0;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) if (line) take(JSON.parse(line));
      }
    } catch {
      // told below: refused, cut, or silent for too long
    }
    clearTimeout(alive);
    stop.abort();
    connection("Connection lost: trying again. What is shown is the last that came.");
    await new Promise((go) => setTimeout(go, AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)]));
  }
}

function connection(text) {
  const told = byId("connection");
  told.textContent = text;
  told.hidden = !text;
  document.body.classList.toggle("lost", Boolean(text));
}

function take(news) {
  now = news.now;
  for (const [name, change] of Object.entries(news.curves)) {
    const points = store.get(name) || [];
    points.splice(change.from, points.length, ...change.points);
    if (points.length) store.set(name, points);
    else store.delete(name);
  }
  byId("controls").hidden = !(news.may && now.live);
  show();
}

// ---------------------------------------------------------------- the state

function show() {
  if (!now) return;
  document.title = `${percent()}${now.name} – SpeeDO`;
  set("name", now.name);
  set("mode", now.mode);
  set("state", now.reading === null ? now.state : `reading the log, ${Math.round(100 * now.reading)} %`);
  byId("state").className = `pill ${kind()}`;
  note("reason", now.reason || now.troubles.join("; "), now.troubles.length > 0 || now.state === "no answer");
  const of = now.max_iter ? ` of ${now.max_iter.toLocaleString("en")}` : "";
  const epoch = now.epoch === null || now.epoch === undefined ? "" : `, epoch ${now.epoch.toFixed(2)}`;
  set("progress", `iteration ${now.iteration.toLocaleString("en")}${of}${epoch}`);
  set("left", now.remaining_s === null ? `${duration(now.seconds)} of training` : `about ${duration(now.remaining_s)} left`);
  byId("done").style.width = `${now.max_iter ? Math.min(100, (100 * now.iteration) / now.max_iter) : 0}%`;
  tiles();
  workers();
  servers();
  set("place", `${now.run_dir}${now.resumed ? `, resumed ${now.resumed} time${now.resumed > 1 ? "s" : ""}` : ""}`);
  byId("notices").hidden = !now.notices.length;
  byId("notices").querySelector("ul").replaceChildren(...[...now.notices].reverse().map((one) => element("li", one)));
  draw();
}

const percent = () => (now.max_iter ? `${Math.floor((100 * now.iteration) / now.max_iter)} % ` : "");
const rate = () => (now.counted === "samples" ? "Samples/s" : "Images/s");
const kind = () => ({ training: "good", finished: "over", "no master": "bad", "no answer": "bad" })[now.state] || "wait";

function tiles() {
  const names = Object.keys(now.metrics);
  const name = names.find((one) => one.toLowerCase().includes("acc")) || names[0];
  set("loss", short(now.loss));
  set("score-name", name ? `Test ${name}` : "Test accuracy");
  set("score", name ? `${short(now.metrics[name])}` : "–", name ? `at ${now.tested_iteration.toLocaleString("en")}` : "");
  set("speed", short(now.images_per_s));
  for (const one of document.querySelectorAll(".rate")) one.textContent = rate();
  const there = now.workers.filter((one) => !one.away).length;
  if (now.live) set("count", String(there), there === now.wanted ? "" : `of ${now.wanted}`);
  else set("count", String(now.workers.length), now.workers.length ? "took part" : "");
  const stale = now.workers.filter((one) => one.staleness !== null);
  const mean = stale.length ? stale.reduce((sum, one) => sum + one.staleness, 0) / stale.length : null;
  set("stale", mean === null ? "–" : trimmed(mean));
  set("checkpoint", now.checkpoint_iteration ? short(now.checkpoint_iteration) : "–", now.checkpoint_iteration ? "iteration" : "");
  if (wanted === null || document.activeElement !== byId("workers")) byId("workers").value = wanted ?? now.wanted;
}

function workers() {
  byId("workers-table").tBodies[0].replaceChildren(...now.workers.map((one) => {
    const row = document.createElement("tr");
    row.className = one.away ? `away ${one.state}` : "";
    row.dataset.worker = one.worker;
    const death = one.deaths
      ? `${one.cause} (${duration(one.died_s_ago)} ago${one.deaths > 1 ? `, ${one.deaths} deaths` : ""})` : "";
    const team = one.team === null ? "" : `of worker ${one.team}`;
    const cells = [
      ["Worker", one.worker], ["Host", one.host], ["State", state(one)], ["Team", team],
      [rate(), one.images_per_s === null ? "" : short(one.images_per_s)], ["Loss", one.loss === null ? "" : short(one.loss)],
      ["Staleness", one.staleness === null ? "" : trimmed(one.staleness)],
      ["Merged", one.merged.toLocaleString("en")], ["Dropped", one.dropped.toLocaleString("en")], ["Last death", death],
    ];
    row.append(...cells.map(([name, value]) => cell(name, value)));
    row.cells[2].prepend(element("span", "", `light ${light(one)}`));
    return row;
  }));
}

/** Its state without the cause of death, which has a column of its own. */
function state(worker) {
  const cause = `: ${worker.cause}`;
  return worker.away && worker.state.endsWith(cause) ? worker.state.slice(0, -cause.length) : worker.state;
}

function light(worker) {
  if (worker.state === "ended") return "over";
  if (worker.away) return "bad";
  return worker.state.startsWith("waiting for") ? "wait" : "good";
}

function servers() {
  byId("servers").hidden = !now.servers.length;
  byId("servers").querySelector("tbody").replaceChildren(...now.servers.map((one) => {
    const row = document.createElement("tr");
    row.append(cell("Server", one.server), cell("Host", one.host), cell("MB", (one.bytes / 1e6).toFixed(1)), cell("State", one.state));
    return row;
  }));
}

// ---------------------------------------------------------------- the curves

function draw() {
  if (!now) return;
  const across = byTime ? 1 : 0;
  const form = byTime ? (at) => (at === 0 ? "0" : duration(at)) : short;
  const points = (name, axis = across) => (store.get(name) || []).map((one) => [one[axis], one[2]]);
  const tests = [...store.keys()].filter((name) => name.startsWith("test/")).sort();
  const losses = tests.filter((name) => name.toLowerCase().includes("loss"));
  const others = tests.filter((name) => !losses.includes(name));
  const series = (names, first) => names.map((name, index) => (
    { name: name.slice(5), colour: COLOURS[(first + index) % COLOURS.length], points: points(name) }));
  const loss = [{ name: "training", colour: "c0", points: points("loss"), smooth: true },
    ...series(losses, 1).map((one) => ({ ...one, name: `test ${one.name}` }))];
  const score = series(others, 2);
  curves(byId("loss-chart"), loss, { form });
  curves(byId("test-chart"), score, { form, nothing: "no test yet" });
  const speed = [{ name: `${now.counted}/s`, colour: "c0", points: points("images/s", 1), undotted: true }];
  curves(byId("speed-chart"), speed, { form: (at) => (at === 0 ? "0" : duration(at)), from0: true });
  const last = now.staleness.length - 1;
  bars(byId("stale-chart"), now.staleness, { name: (one) => (one === 16 && one === last ? "16+" : String(one)) });
  legend("loss-legend", loss.filter((one) => one.points.length));
  legend("test-legend", score);
  const fates = Object.entries(now.decisions).map(([name, count]) => `${count.toLocaleString("en")} ${name}`);
  set("decisions", fates.join(" · "));
}

function legend(name, series) {
  byId(name).replaceChildren(...series.map((one) => {
    const made = element("span", one.name);
    made.prepend(element("i", "", one.colour));
    return made;
  }));
}

// ---------------------------------------------------------------- the buttons

async function ask(what, fields) {
  for (const one of document.querySelectorAll("#controls button")) one.disabled = true;
  note("said", "asked", false);
  try {
    const answer = await fetch(what, {
      method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(fields),
    });
    const told = await answer.json();
    note("said", told.said || told.error, !answer.ok);
  } catch {
    note("said", "the request did not arrive: try again", true);
  }
  for (const one of document.querySelectorAll("#controls button")) one.disabled = false;
}

function change(by) {
  wanted = Math.max(1, (Number(byId("workers").value) || now?.wanted || 1) + by);
  byId("workers").value = wanted;
}

byId("fewer").onclick = () => change(-1);
byId("more").onclick = () => change(1);
byId("workers").oninput = () => { wanted = Number(byId("workers").value) || null; };
byId("scale").onsubmit = (event) => {
  event.preventDefault();
  const number = Number(byId("workers").value);
  if (!Number.isInteger(number) || number < 1) return note("said", "give a whole number of workers, 1 or more", true);
  wanted = null;
  return ask("/scale", { workers: number });
};
byId("stop").onclick = () => byId("sure").showModal();
byId("sure").onclose = () => { if (byId("sure").returnValue === "yes") ask("/stop", {}); byId("sure").returnValue = ""; };
for (const [name, time] of [["by-iteration", false], ["by-time", true]]) {
  byId(name).onclick = () => {
    byTime = time;
    byId("by-time").setAttribute("aria-pressed", String(time));
    byId("by-iteration").setAttribute("aria-pressed", String(!time));
    draw();
  };
}
window.onresize = draw;

// ---------------------------------------------------------------- small things

function set(name, text, small = "") {
  const place = byId(name);
  if (place.textContent === text + small) return;
  place.textContent = text;
  if (small) place.append(element("small", small));
}

function note(name, text, bad) {
  const place = byId(name);
  place.textContent = text;
  place.hidden = !text;
  place.classList.toggle("bad", bad);
}

function element(kindOf, text, colour = "") {
  const made = document.createElement(kindOf);
  made.textContent = text;
  if (colour) made.className = colour;
  return made;
}

function cell(name, value) {
  const made = element("td", String(value));
  made.dataset.name = name;
  if (value === "") made.classList.add("none");
  return made;
}

const trimmed = (value) => value.toFixed(1).replace(/\.0$/, "");

follow();
