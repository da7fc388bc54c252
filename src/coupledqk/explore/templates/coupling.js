// The heads that coupling changes, and the effects of interventions on the loss.
const MOST_HEADS = 6;

// The run that the tour and the list of heads describe.
const subject = () => coupledRuns().at(-1) ?? state.bundle.runs[0];

function headsByChange(run) {
  const heads = run.changed.flatMap((row, layer) => row.map((share, head) => ({ layer, head, share })));
  return heads.sort((a, b) => b.share - a.share);
}

// The share of a head's attention on each kind of target, over the rows in which all targets are different tokens.
function placesLookedAt({ n, weights }) {
  const shares = { itself: 0, before: 0, first: 0, others: 0 };
  let total = 0;
  for (let query = 2; query < n; query++) {
    for (let key = 0; key < n; key++) {
      const place = key === query ? "itself" : key === query - 1 ? "before" : key === 0 ? "first" : "others";
      shares[place] += Math.abs(weights[query * n + key]);
      total += Math.abs(weights[query * n + key]);
    }
  }
  return Object.fromEntries(Object.entries(shares).map(([place, share]) => [place, share / (total || 1)]));
}

const PLACES = { itself: "the token itself", before: "the previous token", first: "the first token", others: "other tokens" };
const LEAST_MOVED = 0.05;

function focusWords(before, after) {
  const [many, now] = [before, after].map(tokensLookedAt);
  const numbers = `a row looks at ${now.toFixed(1)} tokens on average instead of ${many.toFixed(1)}`;
  if (now < 0.8 * many) return `Coupling focuses its attention: ${numbers}.`;
  if (many < 0.8 * now) return `Coupling spreads its attention: ${numbers}.`;
  return `A row looks at ${now.toFixed(1)} tokens on average, about as many as before (${many.toFixed(1)}).`;
}

// Describes how coupling changes the attention of a head, on average over the text.
function movedWords(run, layer, head) {
  const { length } = state.bundle.tokens;
  if (length < 3) return "";
  const [before, after] = [0, run.n_steps].map((step) => headMap(run, length, layer, head, step));
  const [from, to] = [before, after].map(placesLookedAt);
  const sorted = Object.keys(PLACES).sort((a, b) => to[a] - from[a] - (to[b] - from[b]));
  const [loser, winner] = [sorted[0], sorted.at(-1)];
  const shares = (place) => `${PLACES[place]} (${percent(from[place])} before, ${percent(to[place])} after)`;
  const where = to[winner] - from[winner] < LEAST_MOVED ? "" : ` Attention moves from ${shares(loser)} to ${shares(winner)}.`;
  return focusWords(before, after) + where;
}

function headButton({ layer, head, share }, largest) {
  const chosen = layer === state.layer && head === state.head;
  const button = element("button", { type: "button", class: "head", "aria-pressed": chosen }, element("span", {}, `layer ${layer}, head ${head}`), element("b", {}, percent(share)));
  button.style.setProperty("--part", largest && share / largest);
  button.addEventListener("click", () => choose({ layer, head, all: false }));
  return button;
}

function showChanged() {
  const run = subject();
  if (!run.changed) return;
  const heads = headsByChange(run);
  const largest = heads[0].share;
  const place = heads.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  const of = state.bundle.runs.length > 1 ? ` of ${run.name}` : "";
  const words = place < 0 ? "" : ` In layer ${state.layer}, head ${state.head}${of} it is ${percent(heads[place].share)}: number ${place + 1} of ${heads.length}.`;
  const how = place < 0 ? "" : ` ${movedWords(run, state.layer, state.head)}`;
  byId("verdict").textContent = `The share of attention that coupling moves to other tokens, largest first.${words}${how}`;
  const wasOpen = byId("changed").querySelector("details")?.open;
  const list = (some) => element("div", { class: "heads" }, ...some.map((head) => headButton(head, largest)));
  const rest = heads.slice(MOST_HEADS);
  const more = rest.length ? [element("details", wasOpen || place >= MOST_HEADS ? { open: "" } : {}, element("summary", {}, `the other ${rest.length} heads`), list(rest))] : [];
  byId("changed").replaceChildren(list(heads.slice(0, MOST_HEADS)), ...more);
}

function effectRow(words, loss, trained) {
  const change = loss - trained;
  const cells = [loss.toFixed(3), change === 0 ? "" : `${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(3)}`, percent(Math.exp(-loss))];
  const row = element("tr", {}, element("th", { scope: "row" }, words), ...cells.map((cell) => element("td", {}, cell)));
  if (Math.abs(change) >= 0.0005) row.classList.add(change > 0 ? "worse" : "better");
  return row;
}

function effectTable(run, effects) {
  const { layer, head } = state;
  const rows = [["as trained", effects.loss]];
  if (layer < run.n_layers && head < run.n_heads) {
    rows.push([`without layer ${layer}, head ${head}`, effects.without_head[layer][head]]);
    if (effects.without_motion) rows.push([`its query and key held still (dt\u00a0=\u00a00)`, effects.without_motion[layer][head]]);
  }
  if (effects.without_dynamics !== null) rows.push(["all queries and keys held still (dt\u00a0=\u00a00)", effects.without_dynamics]);
  const header = element("thead", {}, element("tr", {}, ...["", "loss", "change", "correct next token"].map((text) => element("th", {}, text))));
  return element("div", { class: "wide" }, element("table", {}, header, element("tbody", {}, ...rows.map(([words, loss]) => effectRow(words, loss, effects.loss)))));
}

function showEffects() {
  const { runs } = state.bundle;
  const figures = runs.map((run, i) => {
    const effects = state.effects?.[i];
    const body = effects ? effectTable(run, effects) : element("p", { class: "note" }, state.effects ? "A text of one token has no next token to predict." : "computing …");
    return element("figure", { class: "run" }, ...(runs.length > 1 ? [element("figcaption", {}, run.name)] : []), body);
  });
  byId("effects").replaceChildren(...figures);
}
