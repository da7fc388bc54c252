"use strict";
// Shows the values under the pointer and a line through the nearest points. The charts are complete without this script.
const formatX = new Intl.NumberFormat("en", { maximumSignificantDigits: 9 });
const formatY = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
const NEAR = 12;

function add(parent, kind, attributes, text = "") {
  const element = document.createElementNS(parent.namespaceURI, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return parent.appendChild(element);
}

function readCurve(group) {
  const line = group.querySelector(".line");
  const pixels = line.getAttribute("d").match(/[\d.]+/g).map(Number);
  const ys = group.dataset.y.split(" ");
  const points = group.dataset.x.split(" ").map((x, i) => ({ x, y: ys[i], left: pixels[2 * i], top: pixels[2 * i + 1] }));
  return { name: group.dataset.name, style: line.getAttribute("style"), points };
}

function nearest(points, left) {
  return points.reduce((a, b) => (Math.abs(b.left - left) < Math.abs(a.left - left) ? b : a));
}

function show(svg, curves, guide, readout, left) {
  const here = nearest(curves.map((curve) => nearest(curve.points, left)), left);
  const found = curves
    .map((curve) => ({ ...curve, ...nearest(curve.points, here.left) }))
    .filter((point) => Math.abs(point.left - here.left) < NEAR);
  const [, bottom] = svg.querySelector(".axis").getAttribute("d").match(/[\d.]+/g);
  guide.replaceChildren();
  readout.replaceChildren();
  add(guide, "path", { class: "axis", d: `M${here.left} ${bottom}V${Math.min(...found.map((point) => point.top))}` });
  add(readout, "div", {}, `${svg.dataset.xLabel} ${formatX.format(here.x)}`);
  for (const { name, style, left, top, y } of found) {
    add(guide, "circle", { class: "marks", style, cx: left, cy: top, r: 5 });
    const row = add(readout, "div", { class: "row", style });
    add(row, "span", {}, name);
    add(row, "b", {}, formatY.format(y));
  }
  // The readout is to the right of the pointer if there is room, where falling curves leave the top free.
  const part = (100 * here.left) / svg.viewBox.baseVal.width;
  readout.style.left = part < 60 ? `${part + 3}%` : "auto";
  readout.style.right = part < 60 ? "auto" : `${103 - part}%`;
}

function makeReadable(svg) {
  const title = svg.querySelector("title");
  svg.setAttribute("aria-label", title.textContent);
  title.remove(); // otherwise the browser shows it as a tooltip over the readout
  const curves = [...svg.querySelectorAll(".series")].map(readCurve);
  const guide = add(svg, "g", { class: "guide" });
  const readout = add(svg.parentElement, "div", { class: "chart readout" });
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    show(svg, curves, guide, readout, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "mouse") return; // on a touch screen the readout stays after the finger is lifted
    guide.replaceChildren();
    readout.replaceChildren();
  });
}

document.querySelectorAll("svg.chart[data-x-label]").forEach(makeReadable);
