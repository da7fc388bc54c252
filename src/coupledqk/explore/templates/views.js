// What is shown: the state of the page, its maps and its paths.
const byId = (id) => document.getElementById(id);
const state = { bundle: null, top: 1, layer: 0, head: 0, all: false, difference: false, query: 0, step: 0, pointed: null };
let shown = []; // the heat maps on the page: { heat, map, name, head }

function current() {
  return state.pointed ?? { query: state.query, key: null, shown: shown.find(({ head }) => head === state.head) ?? shown[0] };
}

// A run's map of a head, or why there is none.
function mapOf(run, head) {
  if (state.layer >= run.n_layers) return `${run.name} has no layer ${state.layer}.`;
  if (head >= run.n_heads) return `${run.name} has no head ${head}.`;
  return headMap(run, state.bundle.tokens.length, state.layer, head);
}

function panels() {
  const { runs } = state.bundle;
  const title = (run) => [run.name, ...(run.variant === run.name ? [] : [element("span", { class: "note" }, ` ${run.variant}`)])];
  if (!state.difference) return runs.map((run) => ({ name: run.name, title: title(run), map: (head) => mapOf(run, head) }));
  const name = `${runs[1].name} − ${runs[0].name}`;
  const both = (head) => runs.map((run) => mapOf(run, head));
  const map = (head) => both(head).find((found) => typeof found === "string") ?? differenceMap(...both(head));
  return [{ name, title: [name, element("span", { class: "note" }, " the difference of the weights")], map }];
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
    sides.replaceChildren(element("div", {}, box, numbers(entry.map, state.difference)), entry.looks);
  }
  return element("figure", { class: "run" }, element("figcaption", {}, ...panel.title), sides);
}

function smallPanel(panel) {
  const { runs } = state.bundle;
  const heads = Array.from({ length: Math.max(...runs.map((run) => run.n_heads)) }, (_, head) => head);
  const figures = heads.map((head) => {
    const { box, entry } = addMap(panel, head, false);
    const entropy = entry ? `entropy ${state.difference ? signedNumber(entry.map.entropy, 2) : entry.map.entropy.toFixed(2)}` : "";
    const figure = element("figure", {}, box, element("figcaption", {}, `head ${head}`, element("span", {}, entropy)));
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
  refresh();
}

function showPaths(query) {
  const { runs, tokens } = state.bundle;
  const { layer, head, step } = state;
  const has = (run) => run.paths && layer < run.n_layers && head < run.n_heads;
  const paths = runs.map((run) =>
    Array.from({ length: has(run) ? run.paths.parts : 0 }, (_, part) => tokenPath(run, tokens.length, layer, head, part, query)),
  );
  const place = frame(paths.flat());
  const figures = runs.map((run, i) => {
    const reason = run.paths ? mapOf(run, head) : `No path to draw: ${run.no_paths}.`;
    const planes = paths[i].map((path, part) => {
      const which = run.paths.parts > 1 ? [element("p", { class: "numbers" }, `q and k of the ${["first", "second"][part]} map`)] : [];
      return element("div", { class: "sides" }, drawPath(path, place, step), element("div", {}, ...which, ...pathNumbers(path, step)));
    });
    const body = planes.length ? element("div", { class: "planes" }, ...planes) : element("p", { class: "note" }, reason);
    return element("figure", { class: "run" }, element("figcaption", {}, run.name), body);
  });
  byId("paths").replaceChildren(...figures);
  byId("mover").textContent = label(tokens[query]);
}

function showScrubber() {
  const most = Math.max(0, ...state.bundle.runs.map((run) => run.paths?.n_steps ?? 0));
  state.step = Math.min(state.step, most);
  byId("scrubber").hidden = most === 0;
  byId("step").max = most;
  byId("step").value = state.step;
  byId("step-name").textContent = `${state.step} of ${most}`;
}

// Everything that follows the row under the pointer, or the kept one.
function refresh() {
  const { query, key, shown: source } = current();
  const { tokens } = state.bundle;
  const largest = Math.max(...shown.map(({ map }) => largestWeight(map, query)));
  for (const { heat, map, looks } of shown) {
    heat.mark(query, key);
    looks?.replaceChildren(...describeRow(tokens, map, query, key, largest, state.difference));
  }
  if (source) {
    shadeTokens(byId("tokens"), source.map, state.top, query, key);
    const what = state.difference ? "by the difference" : `by where ${tokens.length > 1 ? "the framed one" : "it"} looks`;
    byId("shade").textContent = `Shaded ${what} in layer ${state.layer}, head ${source.head}${state.bundle.runs.length > 1 ? ` of ${source.name}` : ""}.`;
  }
  showScrubber();
  showPaths(query);
}

function point(entry, place) {
  const before = state.pointed;
  if (place?.query === before?.query && place?.key === before?.key && entry === before?.shown) return;
  state.pointed = place && { ...place, shown: entry };
  refresh();
}
