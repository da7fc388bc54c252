// The guided tour of four heads with typical behaviours, selected by explore/tour.py on this text.
const STOPS = {
  previous: { title: "the previous token", words: "looks at the token just before the current one" },
  induction: { title: "repetition", words: "looks for an earlier occurrence of the current token, and at the token that followed it. This is how a model continues a repetition; such heads are called induction heads" },
  sink: { title: "the first token", words: "looks mostly at the first token of the text, whatever the current token is. A head that has nothing to contribute puts its attention there; the first token is then called an attention sink" },
  changed: { title: "changed by coupling", words: "" },
};

function missingStop(kind) {
  if (kind === "changed") return "The runs shown here have no coupling, so it changes no head.";
  if (kind === "induction") return "No token of this text occurs twice, so there is no repetition to continue. Try a text that repeats itself.";
  return "This text is too short for this stop.";
}

// The token that a stop's row attends to most after a step, and its share of attention.
function mostLooked(run, stop, step) {
  const row = rowOf(headMap(run, state.bundle.tokens.length, stop.layer, stop.head, step), stop.query);
  const key = row.reduce((best, weight, i) => (Math.abs(weight) > Math.abs(row[best]) ? i : best), 0);
  return { key, share: percent(row[key]) };
}

function changeWords(run, stop) {
  const [before, after] = [mostLooked(run, stop, 0), mostLooked(run, stop, run.n_steps)];
  const named = ({ key }) => [tokenName(state.bundle.tokens, key), tokenPlace(key)];
  if (before.key === after.key) return ["it looks most at ", ...named(before), ` in both cases: ${before.share} before coupling, ${after.share} after`];
  return ["before coupling it looks most at ", ...named(before), ` (${before.share}), after coupling at `, ...named(after), ` (${after.share})`];
}

function stopWords(run, stop) {
  const { tokens } = state.bundle;
  const where = element("b", {}, `Layer ${stop.layer}, head ${stop.head}`);
  const at = [tokenName(tokens, stop.query), tokenPlace(stop.query)];
  if (stop.kind === "changed") {
    return [
      element("p", {}, where, ` is the head that coupling changes most: it moves ${percent(stop.share)} of its attention to other tokens. ${movedWords(run, stop.layer, stop.head)}`),
      element("p", {}, "See the row of ", ...at, ": ", ...changeWords(run, stop), ". Drag the slider “coupling”, or press “play”, to follow the steps in between."),
    ];
  }
  const clear = stop.share >= 0.25 && stop.share >= 2 * stop.even;
  const does = STOPS[stop.kind].words;
  const words = clear
    ? element("p", {}, where, ` ${does}.`)
    : element("p", {}, `Some models have a head that ${does}. No head of this run does so clearly on this text; the nearest is `, element("b", {}, `layer ${stop.layer}, head ${stop.head}`), ".");
  const coupling = stop.before === null ? "" : ` Without coupling it would be ${percent(stop.before)}.`;
  const numbers = element("p", {}, `It puts ${percent(stop.share)} of its attention there, on average; evenly spread attention would put ${percent(stop.even)}.${coupling} See the row of `, ...at, ", which looks at ", tokenName(tokens, stop.key), tokenPlace(stop.key), ".");
  return [words, numbers];
}

function visit(place) {
  state.stop = place;
  const run = subject();
  const stop = run.tour.find(({ kind }) => kind === Object.keys(STOPS)[place]);
  if (!stop) return showTour();
  choose({ layer: stop.layer, head: stop.head, all: false, step: mostSteps(), query: stop.query, view: Object.keys(viewChoices())[0] });
}

function showTour() {
  const kinds = Object.keys(STOPS);
  const buttons = kinds.map((kind, i) => ({ text: `${i + 1} ${STOPS[kind].title}`, pressed: i === state.stop, act: () => visit(i) }));
  showPicker("stops", "guided tour", buttons);
  if (state.stop === null) {
    byId("stop").replaceChildren(element("p", {}, "Four heads with typical behaviours, selected on this text."));
    return;
  }
  const kind = kinds[state.stop];
  const stop = subject().tour.find((found) => found.kind === kind);
  const of = state.bundle.runs.length > 1 ? [element("p", { class: "note" }, `The tour is about ${subject().name}.`)] : [];
  byId("stop").replaceChildren(...(stop ? stopWords(subject(), stop) : [element("p", {}, missingStop(kind))]), ...of);
}
