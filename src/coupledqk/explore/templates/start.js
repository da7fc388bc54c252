// Shows the first bundle and, on a served page, other texts as they are typed.
const PAUSE = 250; // milliseconds without a keystroke before the text is read

function show(bundle, effects) {
  const { tokens, runs, cut_from } = bundle;
  const lastWord = tokens.findLastIndex((token) => /\p{L}/u.test(token));
  const isFirst = state.bundle === null;
  Object.assign(state, { bundle, effects, top: topWeight(bundle), query: lastWord < 0 ? tokens.length - 1 : lastWord, stop: null, pointed: null });
  byId("cut").hidden = cut_from === null;
  byId("cut").textContent = `These are the first ${tokens.length} of the text’s ${cut_from?.toLocaleString("en")} tokens.`;
  byId("signed").hidden = !runs.some((run) => run.signed);
  document.querySelectorAll(".coupled").forEach((part) => (part.hidden = coupledRuns().length === 0));
  byId("explorer").hidden = false;
  showTokens(byId("tokens"), tokens);
  if (isFirst && subject().changed) return visit(Object.keys(STOPS).indexOf("changed"));
  showPickers();
  showMaps();
}

function complain(message) {
  byId("error").hidden = !message;
  byId("error").textContent = message;
}

async function ask(route, text, signal) {
  const request = fetch(route, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text }), signal });
  const silence = { error: "The server does not respond: is `coupledqk explore --serve` still running?" };
  return request.then((response) => response.json()).catch(() => silence);
}

let asking = new AbortController();

async function askEffects(text, signal) {
  const effects = await ask("effects", text, signal);
  if (signal.aborted || effects.error) return;
  state.effects = effects;
  showEffects();
}

async function askForText() {
  asking.abort();
  const { signal } = (asking = new AbortController());
  const text = byId("text").value;
  byId("busy").textContent = "reading …";
  const answer = await ask("bundle", text, signal);
  if (signal.aborted) return;
  byId("busy").textContent = "";
  complain(answer.error ?? "");
  if (answer.error) return;
  show(await decode(answer), null);
  askEffects(text, signal);
}

let pause;
byId("text")?.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(askForText, PAUSE);
});
byId("ask")?.addEventListener("submit", (event) => event.preventDefault());
darkness.addEventListener("change", () => state.bundle && showMaps());
decode(JSON.parse(byId("bundle").textContent)).then(
  (bundle) => {
    show(bundle, JSON.parse(byId("effects-data").textContent));
    if (byId("text")) askEffects(byId("text").value, asking.signal);
  },
  (error) => complain(`The page cannot be shown in this browser: ${error.message}.`),
);
