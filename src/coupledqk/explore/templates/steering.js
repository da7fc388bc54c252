// The pickers, the pointer and the keys.
function showPicker(id, name, choices) {
  const buttons = choices.map(({ text, pressed, change }) => {
    const button = element("button", { type: "button", "aria-pressed": Boolean(pressed) }, text);
    button.addEventListener("click", () => choose(change));
    return button;
  });
  byId(id).replaceChildren(element("span", {}, name), ...buttons);
}

function showPickers() {
  const { runs } = state.bundle;
  const upTo = (count) => Array.from({ length: Math.max(...runs.map((run) => run[count])) }, (_, i) => i);
  showPicker("layers", "layer", upTo("n_layers").map((layer) => ({ text: layer, pressed: layer === state.layer, change: { layer } })));
  const heads = upTo("n_heads").map((head) => ({ text: head, pressed: !state.all && head === state.head, change: { head, all: false } }));
  showPicker("heads", "head", [...heads, { text: "all", pressed: state.all, change: { all: true } }]);
  byId("views").hidden = runs.length < 2;
  const view = (text, difference) => ({ text, pressed: difference === state.difference, change: { difference } });
  showPicker("views", "runs", [view("side by side", false), view("difference", true)]);
}

function choose(change) {
  const focused = document.activeElement?.closest(".picker")?.id;
  const place = [...(byId(focused)?.children ?? [])].indexOf(document.activeElement);
  Object.assign(state, change);
  showPickers();
  if (focused) byId(focused).children[place]?.focus();
  showMaps();
}

function turn(name, count, by) {
  const n = Math.max(...state.bundle.runs.map((run) => run[count]));
  choose({ [name]: (state[name] + by + n) % n });
}

function moveQuery(by) {
  const n = state.bundle.tokens.length;
  state.pointed = null;
  state.query = (state.query + by + n) % n;
  refresh();
}

function scrub(step) {
  const most = Number(byId("step").max);
  state.step = Math.max(0, Math.min(most, step));
  refresh();
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
  d: () => state.bundle.runs.length > 1 && choose({ difference: !state.difference }),
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
byId("step").addEventListener("input", () => scrub(Number(byId("step").value)));
document.addEventListener("keydown", onKey);
