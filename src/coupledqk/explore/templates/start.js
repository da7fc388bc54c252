// The first bundle, and where the page was served others.
function show(bundle) {
  const { tokens, runs, cut_from } = bundle;
  const lastWord = tokens.findLastIndex((token) => /\p{L}/u.test(token));
  Object.assign(state, { bundle, top: topWeight(bundle), query: lastWord < 0 ? tokens.length - 1 : lastWord, pointed: null });
  state.step = Math.max(0, ...runs.map((run) => run.paths?.n_steps ?? 0));
  byId("cut").hidden = cut_from === null;
  byId("cut").textContent = `These are the first ${tokens.length} of the text’s ${cut_from?.toLocaleString("en")} tokens.`;
  byId("signed").hidden = !runs.some((run) => run.signed);
  document.querySelectorAll(".two").forEach((words) => (words.hidden = runs.length < 2));
  byId("explorer").hidden = false;
  showTokens(byId("tokens"), tokens);
  showPickers();
  showMaps();
}

function complain(message) {
  byId("error").hidden = !message;
  byId("error").textContent = message;
}

async function ask(event) {
  event.preventDefault();
  const button = byId("ask").querySelector("button");
  const body = JSON.stringify({ text: byId("text").value });
  button.disabled = true;
  byId("busy").textContent = "reading …";
  const request = fetch("bundle", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const silence = { error: "The server does not answer: is `coupledqk explore --serve` still running?" };
  const answer = await request.then((response) => response.json()).catch(() => silence);
  button.disabled = false;
  byId("busy").textContent = "";
  complain(answer.error ?? "");
  if (!answer.error) show(await decode(answer));
}

byId("ask")?.addEventListener("submit", ask);
darkness.addEventListener("change", () => state.bundle && showMaps());
decode(JSON.parse(byId("bundle").textContent)).then(show, (error) => complain(`The page cannot be shown in this browser: ${error.message}`));
