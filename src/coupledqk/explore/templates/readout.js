// The selected row of a map as text: the tokens shaded by attention, and the keys with the most attention.
const MOST_KEYS = 6;

function tokenName(tokens, i) {
  return element("bdi", { class: "name" }, label(tokens[i]));
}

function tokenPlace(i) {
  return element("small", {}, i);
}

function shadeOf(weight) {
  return weight < 0 ? "var(--k)" : "var(--q)";
}

function showTokens(box, tokens) {
  box.replaceChildren(
    ...tokens.map((token, i) => {
      const lines = token.split("\n").map(visible);
      return element("bdi", { "data-token": i }, lines.join("↵\n"));
    }),
  );
}

function shadeTokens(box, { n, weights }, strongest, query, key) {
  [...box.children].forEach((token, i) => {
    const weight = weights[query * n + i];
    token.style.setProperty("--part", strength(weight, strongest).toFixed(3));
    token.style.setProperty("--shade", shadeOf(weight));
    token.classList.toggle("query", i === query);
    token.classList.toggle("key", i === key && i !== query);
  });
  const top = box.children[query].offsetTop - box.offsetTop;
  const seen = top >= box.scrollTop && top + 20 <= box.scrollTop + box.clientHeight;
  if (!seen) box.scrollTop = top - box.clientHeight / 2;
}

function rowEntropy(row) {
  const total = row.reduce((sum, weight) => sum + Math.abs(weight), 0) || 1;
  return row.reduce((sum, weight) => sum - (weight ? (Math.abs(weight) / total) * Math.log(Math.abs(weight) / total) : 0), 0);
}

// The length of a bar is its weight relative to the largest weight in the list.
function bar(tokens, key, weight, largest, format) {
  const track = element("span", {}, tokenName(tokens, key), tokenPlace(key));
  track.style.setProperty("--part", largest && Math.abs(weight) / largest);
  track.style.setProperty("--shade", shadeOf(weight));
  return element("div", { class: "bar" }, track, element("b", {}, format(weight)));
}

const percentagePoints = (weight) => `${weight > 0 ? "+" : ""}${percent(weight).replace("%", "")} pp`;

function rowOf({ n, weights }, query) {
  return weights.subarray(query * n, (query + 1) * n);
}

function largestWeight(map, query) {
  return rowOf(map, query).reduce((largest, weight) => Math.max(largest, Math.abs(weight)), 0);
}

function describeRow(tokens, map, query, key, largest) {
  const { isDifference } = map;
  const row = rowOf(map, query);
  const format = isDifference ? percentagePoints : (weight) => percent(weight);
  const most = [...row.keys()].filter((i) => row[i]).sort((a, b) => Math.abs(row[b]) - Math.abs(row[a]));
  const about = isDifference
    ? " has the largest differences at (in percentage points):"
    : ` looks at ${Math.exp(rowEntropy(row)).toFixed(1)} tokens, most at:`;
  const parts = [element("p", {}, tokenName(tokens, query), tokenPlace(query), about)];
  if (key !== null) {
    const pointed = bar(tokens, key, row[key], largest, format);
    pointed.classList.add("pointed");
    parts.push(pointed);
  }
  return [...parts, ...most.slice(0, MOST_KEYS).map((i) => bar(tokens, i, row[i], largest, format))];
}

// The number of tokens that a row attends to, averaged over the rows.
function tokensLookedAt(map) {
  let total = 0;
  for (let query = 0; query < map.n; query++) total += Math.exp(rowEntropy(rowOf(map, query)));
  return total / map.n;
}

// Half the sum of absolute differences of a row, averaged over the rows: the share of attention moved to other tokens.
function shareMoved({ n, weights }) {
  return weights.reduce((sum, weight) => sum + Math.abs(weight), 0) / (2 * n);
}

function summary(map, isSmall = false) {
  if (map.isDifference) return [element("b", {}, percent(shareMoved(map))), isSmall ? " differs" : " of the attention differs"];
  const many = element("b", {}, tokensLookedAt(map).toFixed(1));
  return isSmall ? [many, " tokens"] : ["looks at ", many, " tokens on average"];
}
