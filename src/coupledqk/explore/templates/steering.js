// Controls: the pickers, the pointer and the keyboard.
function showPicker(id, name, choices) {
  const focused = [...byId(id).children].indexOf(document.activeElement);
  const buttons = choices.map(({ text, pressed, act }) => {
    const button = element("button", { type: "button", "aria-pressed": Boolean(pressed) }, text);
    button.addEventListener("click", act);
    return button;
  });
  byId(id).replaceChildren(element("span", {}, name), ...buttons);
  byId(id).children[focused]?.focus();
}

function showPickers() {
  const { runs } = state.bundle;
  const upTo = (count) => Array.from({ length: Math.max(...runs.map((run) => run[count])) }, (_, i) => i);
  const choice = (text, pressed, change) => ({ text, pressed, act: () => choose(change) });
  showPicker("layers", "layer", upTo("n_layers").map((layer) => choice(layer, layer === state.layer, { layer })));
  const heads = upTo("n_heads").map((head) => choice(head, !state.all && head === state.head, { head, all: false }));
  showPicker("heads", "head", [...heads, choice("all", state.all, { all: true })]);
  const views = Object.entries(viewChoices());
  byId("views").hidden = views.length < 2;
  showPicker("views", "view", views.map(([view, text]) => choice(text, view === currentView(), { view })));
  showTour();
}

function choose(change) {
  Object.assign(state, change);
  showPickers();
  showMaps();
}

function turn(name, count, by) {
  const n = Math.max(...state.bundle.runs.map((run) => run[count]));
  choose({ [name]: (state[name] + by + n) % n });
}

function turnView() {
  const views = Object.keys(viewChoices());
  if (views.length > 1) choose({ view: views[(views.indexOf(currentView()) + 1) % views.length] });
}

function moveQuery(by) {
  const n = state.bundle.tokens.length;
  state.pointed = null;
  state.query = (state.query + by + n) % n;
  refresh();
}

function scrub(step) {
  state.step = Math.max(0, Math.min(mostSteps(), step));
  showMaps();
}

const SECONDS_PER_STEP = 0.8;
let playing = null;

// Plays the steps of the coupling once, from the beginning to the end.
function play() {
  clearInterval(playing);
  scrub(0);
  playing = setInterval(() => {
    scrub(state.step + 1);
    if (state.step === mostSteps()) clearInterval(playing);
  }, 1000 * SECONDS_PER_STEP);
}

const KEYS = {
  ArrowLeft: () => turn("head", "n_heads", -1),
  ArrowRight: () => turn("head", "n_heads", 1),
  ArrowUp: () => turn("layer", "n_layers", -1),
  ArrowDown: () => turn("layer", "n_layers", 1),
  ",": () => moveQuery(-1),
  ".": () => moveQuery(1),
  "[": () => scrub(state.step - 1),
  "]": () => scrub(state.step + 1),
  a: () => choose({ all: !state.all }),
  v: turnView,
  t: () => visit(((state.stop ?? -1) + 1) % Object.keys(STOPS).length),
};

function onKey(event) {
  if (!state.bundle || !KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("textarea, input")) return;
  event.preventDefault();
  KEYS[event.key]();
}

function overToken(event) {
  const token = event.target.closest("[data-token]");
  return token && Number(token.dataset.token);
}

byId("tokens").addEventListener("pointerover", (event) => {
  const query = overToken(event);
  if (query !== null) point(current().shown, { query, key: null });
});
byId("tokens").addEventListener("pointerleave", () => point(null, null));
byId("tokens").addEventListener("click", (event) => {
  state.query = overToken(event) ?? state.query;
  refresh();
});
byId("step").addEventListener("input", () => {
  clearInterval(playing);
  scrub(Number(byId("step").value));
});
byId("play").addEventListener("click", play);
document.addEventListener("keydown", onKey);
