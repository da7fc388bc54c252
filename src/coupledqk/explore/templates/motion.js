// The motion of q and k over the steps, as a drawing in their plane and as text.
const SIDE = 260;
const EDGE = 26;

function draw(parent, kind, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return parent.appendChild(made);
}

// The smallest square that contains the origin and all points of all paths, so that all runs have the same scale.
function frame(paths) {
  const points = [[0, 0], ...paths.flatMap(({ q, k }) => [...q, ...k])];
  const [left, bottom] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
  const [right, top] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
  const size = Math.max(right - left, top - bottom) || 1;
  const unit = (SIDE - 2 * EDGE) / size;
  const [x0, y0] = [(SIDE - (left + right) * unit) / 2, (SIDE + (bottom + top) * unit) / 2];
  return ([x, y]) => [x0 + x * unit, y0 - y * unit];
}

function drawArrow(svg, name, from, to) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy);
  if (length < 1) return;
  const [ux, uy] = [dx / length, dy / length];
  const tip = Math.min(9, length);
  const [bx, by] = [to[0] - ux * tip, to[1] - uy * tip];
  draw(svg, "path", { class: `arrow ${name}`, d: `M${from}L${bx},${by}` });
  draw(svg, "path", { class: `head ${name}`, d: `M${to}L${bx - uy * 4},${by + ux * 4}L${bx + uy * 4},${by - ux * 4}z` });
}

function drawPath(path, place, step) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SIDE} ${SIDE}`);
  svg.setAttribute("class", "plane");
  svg.setAttribute("role", "img");
  const origin = place([0, 0]);
  draw(svg, "path", { class: "origin", d: `M${origin[0] - 5},${origin[1]}h10m-5,-5v10` });
  for (const name of ["q", "k"]) {
    const points = path[name].map(place);
    const now = points[Math.min(step, points.length - 1)];
    drawArrow(svg, name, origin, now);
    draw(svg, "path", { class: `way ${name}`, d: `M${points.join("L")}` });
    for (const [x, y] of points) draw(svg, "circle", { class: name, cx: x, cy: y, r: 2.5 });
    draw(svg, "circle", { class: name, cx: now[0], cy: now[1], r: 4.5 });
    const away = Math.hypot(now[0] - origin[0], now[1] - origin[1]) || 1;
    const [tx, ty] = [now[0] + (14 * (now[0] - origin[0])) / away, now[1] + (14 * (now[1] - origin[1])) / away];
    draw(svg, "text", { class: name, x: tx, y: ty, "text-anchor": "middle", "dominant-baseline": "central" }, name);
  }
  svg.setAttribute("aria-label", `query and key after step ${step}`);
  return svg;
}

// The stored numbers end here, at a code of 32767.
const MOST_MOVED = 32.767;
const movedBy = (share) => (share < MOST_MOVED ? percent(share) : `more than ${percent(share)}`);

const degrees = (angle) => `${angle < 10 ? angle.toFixed(1) : angle.toFixed(0)}°`;

function motionWords(run, motion, token, step) {
  const now = Math.min(step, run.n_steps);
  const one = (name, vector) => [
    element("b", { class: vector }, name),
    now ? ` has moved by ${movedBy(motion.moved[now][vector])} of its length and turned by ${degrees(motion.turned[now][vector])}` : " has not moved yet",
  ];
  const when = now === 0 ? "Before coupling" : run.n_steps === 1 ? "After coupling" : `After ${now} of ${run.n_steps} steps`;
  const size = run.step_size && ` of size ${run.step_size[state.layer][state.head].toFixed(2)}`;
  return [
    element("p", {}, `${when}${now && run.n_steps > 1 && size ? size : ""}, the `, ...one("query", "q"), " and the ", ...one("key", "k"), "."),
    element("p", { class: "note" }, `The angle between them ${now ? `went from ${degrees(motion.angle[0])} to ${degrees(motion.angle[now])}` : `is ${degrees(motion.angle[0])}`}. The picture keeps ${percent(motion.held)} of their squared length.`),
  ];
}

function showMotion(query) {
  const { runs, tokens } = state.bundle;
  const { layer, head, step } = state;
  const moving = runs.filter((run) => run.motion && layer < run.n_layers && head < run.n_heads);
  const motions = moving.map((run) => Array.from({ length: run.motion.parts }, (_, part) => tokenMotion(run, tokens.length, layer, head, part, query)));
  const place = frame(motions.flat());
  const figures = moving.map((run, i) => {
    const planes = motions[i].map((motion, part) => {
      const which = run.motion.parts > 1 ? [element("p", { class: "numbers" }, `query and key of the ${["first", "second"][part]} map`)] : [];
      return element("div", { class: "sides" }, drawPath(motion, place, step), element("div", { class: "words" }, ...which, ...motionWords(run, motion, query, step)));
    });
    const where = [tokenName(tokens, query), element("span", { class: "note" }, ` in layer ${layer}, head ${head}${runs.length > 1 ? ` of ${run.name}` : ""}`)];
    return element("figure", { class: "run" }, element("figcaption", {}, ...where), element("div", { class: "planes" }, ...planes));
  });
  byId("paths").replaceChildren(...(figures.length ? figures : [element("p", { class: "note" }, `No coupled run has layer ${layer} and head ${head}.`)]));
}
