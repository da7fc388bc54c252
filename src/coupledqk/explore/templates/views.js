// The state of the page, and its maps.
const byId = (id) => document.getElementById(id);
const state = { bundle: null, effects: null, top: 1, layer: 0, head: 0, all: false, view: "both", query: 0, step: 0, pointed: null };
let shown = []; // the heat maps on the page: { heat, map, name, head }

function current() {
  return state.pointed ?? { query: state.query, key: null, shown: shown.findLast(({ head }) => head === state.head) ?? shown.at(-1) };
}

const coupledRuns = () => state.bundle.runs.filter((run) => run.n_steps > 0);
const mostSteps = () => Math.max(0, ...state.bundle.runs.map((run) => run.n_steps));

// The available views of the runs; the first is the default.
function viewChoices() {
  const { runs } = state.bundle;
  const several = runs.length > 1 ? { runs: "side by side", difference: "difference" } : {};
  const coupled = coupledRuns().length ? { both: "before and after", change: "change" } : {};
  return { ...coupled, ...several };
}

function currentView() {
  const choices = Object.keys(viewChoices());
  return choices.includes(state.view) ? state.view : (choices[0] ?? "runs");
}

// The map of a head of a run after a step, or the reason why there is none.
function mapOf(run, head, step = state.step) {
  if (state.layer >= run.n_layers) return `${run.name} has no layer ${state.layer}.`;
  if (head >= run.n_heads) return `${run.name} has no head ${head}.`;
  return headMap(run, state.bundle.tokens.length, state.layer, head, step);
}

function difference(first, second) {
  return typeof first === "string" ? first : typeof second === "string" ? second : differenceMap(first, second);
}

function stepWords(run, step) {
  const stored = storedStep(run, Math.min(step, run.n_steps));
  if (stored === 0) return "before coupling";
  return stored === run.n_steps ? "after coupling" : `after step ${stored} of ${run.n_steps}`;
}

function panels() {
  const { runs } = state.bundle;
  const panel = (name, note, map) => ({ name, title: [name, ...(note ? [element("span", { class: "note" }, ` ${note}`)] : [])], map });
  const own = (run) => [run.variant !== run.name && run.variant, run.n_steps && stepWords(run, state.step)].filter(Boolean).join(", ");
  const named = (run, words) => (runs.length > 1 ? `${run.name}, ${words}` : words);
  switch (currentView()) {
    case "difference":
      return [panel(`${runs[1].name} − ${runs[0].name}`, "difference of the attention", (head) => difference(mapOf(runs[0], head), mapOf(runs[1], head)))];
    case "both":
      return coupledRuns().flatMap((run) => [
        panel(named(run, "before coupling"), "", (head) => mapOf(run, head, 0)),
        panel(named(run, stepWords(run, state.step)), "", (head) => mapOf(run, head)),
      ]);
    case "change":
      return coupledRuns().map((run) =>
        panel(named(run, `${stepWords(run, state.step)}, minus before`), "", (head) => difference(mapOf(run, head, 0), mapOf(run, head))),
      );
    default:
      return runs.map((run) => panel(run.name, own(run), (head) => mapOf(run, head)));
  }
}

function addMap(panel, head, labelled) {
  const map = panel.map(head);
  if (typeof map === "string") return { box: element("p", { class: "note" }, map) };
  const heat = new HeatMap(state.bundle.tokens, labelled);
  const entry = { heat, map, name: panel.name, head };
  shown.push(entry);
  heat.canvas.addEventListener("pointermove", (event) => point(entry, heat.at(event)));
  heat.canvas.addEventListener("pointerleave", () => point(entry, null));
  heat.canvas.addEventListener("click", (event) => {
    const place = heat.at(event);
    if (place) state.query = place.query;
    if (state.all) choose({ head, all: false });
    else refresh();
  });
  heat.show(map, state.top, `${panel.name}: attention in layer ${state.layer}, head ${head}`);
  return { box: heat.canvas, entry };
}

function singlePanel(panel) {
  const { box, entry } = addMap(panel, state.head, true);
  const sides = element("div", { class: "sides" }, box);
  if (entry) {
    entry.looks = element("div", { class: "looks" });
    sides.replaceChildren(element("div", {}, box, element("p", { class: "numbers" }, ...summary(entry.map))), entry.looks);
  }
  return element("figure", { class: "run" }, element("figcaption", {}, ...panel.title), sides);
}

function smallPanel(panel) {
  const { runs } = state.bundle;
  const heads = Array.from({ length: Math.max(...runs.map((run) => run.n_heads)) }, (_, head) => head);
  const figures = heads.map((head) => {
    const { box, entry } = addMap(panel, head, false);
    const figure = element("figure", {}, box, element("figcaption", {}, `head ${head}`, element("span", {}, ...(entry ? summary(entry.map, true) : []))));
    figure.classList.toggle("chosen", head === state.head);
    return figure;
  });
  return element("figure", { class: "run" }, element("figcaption", {}, ...panel.title), element("div", { class: "small" }, ...figures));
}

function showMaps() {
  shown = [];
  state.pointed = null;
  byId("maps").replaceChildren(...panels().map(state.all ? smallPanel : singlePanel));
  showScale(byId("scale"), state.top, shown.some(({ map }) => map.signed));
  showScrubber();
  showChanged();
  showEffects();
  refresh();
}

function showScrubber() {
  const most = mostSteps();
  byId("step").max = most;
  byId("step").value = state.step;
  byId("step-name").textContent = state.step === 0 ? "before" : `step ${state.step} of ${most}`;
}

// Updates everything that depends on the selected row, which is under the pointer or was clicked.
function refresh() {
  const { query, key, shown: source } = current();
  const { tokens } = state.bundle;
  const largest = Math.max(...shown.map(({ map }) => largestWeight(map, query)));
  for (const { heat, map, looks } of shown) {
    heat.mark(query, key);
    looks?.replaceChildren(...describeRow(tokens, map, query, key, largest));
  }
  if (source) {
    shadeTokens(byId("tokens"), source.map, state.top, query, key);
    const what = source.map.isDifference ? "by the difference" : `by where ${tokens.length > 1 ? "the framed one" : "it"} looks`;
    byId("shade").textContent = `Shaded ${what} in layer ${state.layer}, head ${source.head}${shown.length > 1 && !state.all ? `: ${source.name}` : ""}.`;
  }
  if (coupledRuns().length) showMotion(query);
}

function point(entry, place) {
  const before = state.pointed;
  if (place?.query === before?.query && place?.key === before?.key && entry === before?.shown) return;
  state.pointed = place && { ...place, shown: entry };
  refresh();
}
