// The way of q and k through the steps, in their plane.
const SIDE = 260;
const EDGE = 26;

function draw(parent, kind, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return parent.appendChild(made);
}

// The smallest square that holds the origin and all points of all paths, so that runs are drawn to one scale.
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
  svg.setAttribute("aria-label", `q and k after step ${step}, in their plane`);
  return svg;
}

const lengthOf = ([x, y]) => Math.hypot(x, y);

function angleBetween(a, b) {
  const cosine = (a[0] * b[0] + a[1] * b[1]) / (lengthOf(a) * lengthOf(b) || 1);
  return (180 / Math.PI) * Math.acos(Math.max(-1, Math.min(1, cosine)));
}

function pathNumbers({ q, k, held }, step) {
  const now = Math.min(step, q.length - 1);
  const cells = (kind, texts) => texts.map((text) => element(kind, {}, text));
  const rows = Object.entries({ q, k }).map(([name, points]) => {
    const [from, to] = [points[0], points[now]];
    const lengths = `${lengthOf(from).toFixed(2)} → ${lengthOf(to).toFixed(2)}`;
    const moved = percent(Math.hypot(to[0] - from[0], to[1] - from[1]) / (lengthOf(from) || 1));
    const turned = `${angleBetween(from, to).toFixed(1)}°`;
    return element("tr", {}, element("th", { scope: "row" }, element("b", { class: name }, name)), ...cells("td", [lengths, moved, turned]));
  });
  const head = element("thead", {}, element("tr", {}, ...cells("th", ["", "length", "moved", "turned"])));
  const angles = [0, now].map((at) => `${angleBetween(q[at], k[at]).toFixed(0)}°`).join(" → ");
  return [
    element("table", {}, head, element("tbody", {}, ...rows)),
    element("p", { class: "numbers" }, `angle between q and k ${angles}; the plane holds ${percent(held)} of the states`),
  ];
}
