// The page: asks for the state once a second, and for new points of the curves when a step was taken.
import { Table } from "./tables.js";
import { Chart } from "./charts.js";

const POLL_MS = 1000;
const POLL_HIDDEN_MS = 10000;
const at = (id) => document.getElementById(id);
const text = (id, content) => { if (at(id).textContent !== content) at(id).textContent = content; };
const NOTHING = "–";

// -- words and numbers -----------------------------------------------------------------------------------------------

function span(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const s = Math.max(seconds, 0);
  if (s < 0.1) return `${Math.round(1000 * s)} ms`;
  if (s < 1) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`;
}
const figure = (value, digits) => (value === null ? NOTHING : value.toFixed(digits));
const whole = (value) => (value === null ? NOTHING : Math.round(value).toLocaleString("en"));
const precise = (value) => (value === null ? NOTHING : Number(value.toPrecision(3)).toString());
const percent = (share) => (share === null ? NOTHING : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);
const mbit = (bytes) => (bytes === null ? NOTHING : precise((8 * bytes) / 1e6));
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const ago = (state, seconds) => (seconds === null ? NOTHING : `${span(state.at_s - seconds)} ago`);

// -- tables ----------------------------------------------------------------------------------------------------------

let state = null;
const number = "number";
const peers = new Table(at("peers"), [
  { title: "Name", kind: "name", value: (p) => p.name, show: (p) => (p.is_us ? `${p.name} (this backbone)` : p.name) },
  { title: "Role", value: (p) => p.role, show: (p) => p.role },
  { title: "Now", value: (p) => p.doing, show: (p) => p.doing, isBad: (p) => p.doing.startsWith("not heard") },
  { title: "Samples/s", kind: number, value: (p) => p.samples_per_s, show: (p) => (p.role === "trainer" ? precise(p.samples_per_s) : "") },
  { title: "Mbit/s up", kind: number, value: (p) => p.up_bytes_per_s, show: (p) => mbit(p.up_bytes_per_s) },
  { title: "down", kind: number, value: (p) => p.down_bytes_per_s, show: (p) => mbit(p.down_bytes_per_s) },
  { title: "Up used", kind: number, value: (p) => p.up_used, show: (p) => percent(p.up_used) },
  { title: "down used", kind: number, value: (p) => p.down_used, show: (p) => percent(p.down_used) },
  { title: "Step", kind: number, value: (p) => p.epoch, show: (p) => whole(p.epoch) },
  { title: "Gave", kind: number, value: (p) => p.samples, show: (p) => (p.role === "trainer" ? whole(p.samples) : "") },
  { title: "Last in a round", kind: number, value: (p) => p.brought_at_s, show: (p) => (p.role === "trainer" ? ago(state, p.brought_at_s) : "") },
  { title: "Reached", value: (p) => p.reached, show: (p) => p.reached },
  { title: "Device", value: (p) => p.device, show: (p) => p.device },
  { title: "Id", value: (p) => p.id, show: (p) => `…${p.id.slice(-6)}` },
], (p) => p.id, { column: 3, isDown: true });

const MOST_ROUNDS = 8;
const MOST_NAMES = 3;
function list(rows, number, show, most = MOST_NAMES) {
  const more = number > most ? ` and ${number - most} more` : "";
  return rows.slice(0, most).map(show).join(", ") + more;
}
const rounds = new Table(at("rounds"), [
  { title: "Step", kind: number, show: (r) => whole(r.epoch + 1) },
  { title: "When", kind: number, show: (r) => ago(state, r.at_s) },
  { title: "Outcome", kind: "long", show: (r) => (r.is_committed ? "committed" : `lost: ${r.reason}`), isBad: (r) => !r.is_committed },
  { title: "Took", kind: number, show: (r) => span(r.seconds) },
  { title: "Links allow", kind: number, show: (r) => span(r.links_allow_s) },
  { title: "Fullest link", show: (r) => (r.fullest_link ? `${r.fullest_link.name} ${r.fullest_link.way} ${percent(r.fullest_link.used)}` : NOTHING) },
  { title: "Samples", kind: number, show: (r) => (r.is_committed ? whole(r.samples) : "") },
  { title: "Brought by", kind: "long", show: (r) => list(r.brought, r.contributors, (b) => `${b.name} ${whole(b.samples)}`) },
  { title: "Averaged by", kind: "long", show: (r) => list(r.reduced, r.reducers, (b) => `${b.name} ${percent(b.share)}`) },
  { title: "Left out", kind: "long", show: (r) => list(r.left_out, r.left_out.length, (b) => `${b.name}: ${b.why}`, 8) },
], (r) => `${r.epoch} ${r.at_s}`);

function meter(share) {
  const element = document.createElement("meter");
  element.max = 1;
  element.value = share ?? 0;
  const label = document.createElement("span");
  label.append(element, ` ${percent(share)}`);
  return label;
}
const contributors = new Table(at("contributors"), [
  { title: "Name", kind: "name", show: (c) => (c.is_here ? c.name : `${c.name} (away)`) },
  { title: "Samples", kind: number, show: (c) => whole(c.samples) },
  { title: "Share", show: (c) => meter(c.share) },
], (c) => c.id);

function place(checkpoint) {
  if (!/^https?:\/\//.test(checkpoint.url)) return checkpoint.place;
  const link = document.createElement("a");
  link.href = checkpoint.url;
  link.rel = "noopener noreferrer";
  link.textContent = checkpoint.place;
  return link;
}
const checkpoints = new Table(at("checkpoints"), [
  { title: "Step", kind: number, show: (c) => whole(c.epoch) },
  { title: "When", kind: number, show: (c) => ago(state, c.at_s) },
  { title: "Size", kind: number, show: (c) => megabytes(c.num_bytes) },
  { title: "Where", show: (c) => (c.where === "hub" ? "Hub" : "disk") },
  { title: "Place", kind: "long", show: place },
], (c) => `${c.where} ${c.epoch} ${c.at_s}`);

// -- figures and notices ---------------------------------------------------------------------------------------------

const figures = new Map();
function tile(title, content) {
  let value = figures.get(title);
  if (value === undefined) {
    const box = document.createElement("div");
    const term = document.createElement("dt");
    value = document.createElement("dd");
    term.textContent = title;
    box.append(term, value);
    at("figures").append(box);
    figures.set(title, value);
  }
  if (value.textContent !== content) value.textContent = content;
}

function showFigures(now, run) {
  const until = run.until_epoch === null ? "" : ` / ${whole(run.until_epoch)}`;
  tile("Step", `${whole(now.epoch)}${until}`);
  tile("Loss", figure(now.loss, 4));
  tile("Held-out loss", figure(now.eval_loss, 4));
  if (now.eval_accuracy !== null) tile("Held-out right", percent(now.eval_accuracy));
  tile("Samples/s", precise(now.samples_per_s));
  tile("Learning rate", precise(now.learning_rate));
  tile("Trainers", whole(now.trainers));
  tile("Next step in", span(now.next_step_s));
  tile("A step takes", span(now.step_s));
  if (run.until_epoch !== null) tile("Run ends in", span(now.remaining_s));
}

function showNotices(told) {
  at("notices").replaceChildren(...told.map((one) => {
    const item = document.createElement("li");
    item.className = one.is_problem ? "problem" : "";
    item.textContent = `${ago(state, one.at_s)}: ${one.text}${one.hint ? ` (${one.hint})` : ""}`;
    return item;
  }));
}

function showHealth(health) {
  at("health").dataset.level = health.level;
  text("health-text", health.text);
  text("health-hint", health.hint);
}

function show() {
  const { run, now } = state;
  document.title = `${figure(now.loss, 3)} · ${run.id}`;
  text("run", run.id);
  text("about", `${run.task}, ${run.strategy}, ${run.is_open ? "open to everybody with the invite" : "for invited people"}, collab ${run.version}`);
  showHealth(state.health);
  showFigures(now, run);
  text("peers-number", now.peers > state.peers.length ? `${state.peers.length} of ${whole(now.peers)}` : `${now.peers}`);
  peers.show(state.peers);
  rounds.show(state.rounds.slice(0, MOST_ROUNDS));
  text("contributors-total", `${whole(state.contributors.total)} samples, as peers tell`);
  contributors.show(state.contributors.rows);
  const { others, samples } = state.contributors;
  text("contributors-others", others ? `and ${whole(others)} more with ${whole(samples)} samples` : "");
  checkpoints.show(state.checkpoints);
  showNotices(state.notices);
}

// -- curves ----------------------------------------------------------------------------------------------------------

const charts = [
  new Chart(at("chart-loss"), [["loss", "training", "--first"], ["eval_loss", "held-out", "--second"]]),
  new Chart(at("chart-speed"), [["samples_per_s", "samples/s", "--first"]]),
  new Chart(at("chart-rate"), [["learning_rate", "rate", "--first"]]),
  new Chart(at("chart-links"), [["round_s", "took", "--first"], ["round_links_s", "links allow", "--second"]]),
];
const MOST_ASKED = 5; // a step may have no loss
let asked = 0;
let drawnEpoch = -1;
let drawnEvalEpoch = -1;

async function updateCurves() {
  const { epoch, eval_epoch: evalEpoch } = state.now;
  if (epoch === drawnEpoch && evalEpoch === drawnEvalEpoch) return;
  if (epoch < drawnEpoch) charts.forEach((chart) => chart.clear());
  const wanted = charts.flatMap((chart) => chart.wanted());
  const response = await fetch(`api/v1/curves?${new URLSearchParams(wanted)}`);
  if (!response.ok) return;
  const curves = await response.json();
  charts.forEach((chart) => chart.add(curves));
  // The store is written once a second, after the state is told: what has not come yet is asked for again.
  asked += 1;
  if (Math.max(-1, ...curves.loss.epochs) >= epoch || asked === MOST_ASKED) {
    asked = 0;
    drawnEpoch = epoch;
    drawnEvalEpoch = evalEpoch;
  }
}

// -- asking ----------------------------------------------------------------------------------------------------------

let heardMs = 0;
async function poll() {
  try {
    const response = await fetch("api/v1/state", { signal: AbortSignal.timeout(10 * POLL_MS) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    state = await response.json();
    heardMs = performance.now();
    show();
    await updateCurves();
  } catch (error) {
    const since = heardMs ? ` for ${span((performance.now() - heardMs) / 1000)}` : "";
    showHealth({ level: "trouble", text: `The backbone has not answered this page${since}`, hint: "trying again; training goes on without it" });
    console.warn(error);
  }
  setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
}
document.addEventListener("visibilitychange", () => charts.forEach((chart) => chart.draw()));
poll();
