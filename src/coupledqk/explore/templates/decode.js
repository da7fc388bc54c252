"use strict";
// Decodes the bundle of explore/bundle.py to arrays, and its tokens to visible labels.
const UNIT = 4096;

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const codes = new Int16Array(bytes.length / 2);
  for (let i = 0; i < codes.length; i++) codes[i] = bytes[i] | (bytes[codes.length + i] << 8);
  return codes;
}

async function decode(bundle) {
  if (bundle.format !== "coupledqk explorer" || bundle.version !== 2) throw new Error("the data are not an explorer bundle of version 2");
  for (const run of bundle.runs) {
    run.maps = await unpack(run.maps);
    for (const part of run.motion ? ["points", "held", "numbers"] : []) run.motion[part] = await unpack(run.motion[part]);
  }
  return bundle;
}

// The weight of the strongest colour: a round number that one in fifty weights of all maps exceeds.
function topWeight({ tokens, runs }) {
  const counts = new Float64Array(32768);
  let rest = 0;
  for (const { maps, causal } of runs) {
    for (let i = 0; i < maps.length; i++) {
      if (causal && i % tokens.length > Math.floor(i / tokens.length) % tokens.length) continue;
      counts[Math.abs(maps[i])]++;
      rest += 1 / 50;
    }
  }
  let code = counts.length - 1;
  while (code > 1 && (rest -= counts[code]) > 0) code--;
  const top = (code / UNIT) ** 2;
  const power = 10 ** Math.floor(Math.log10(top));
  return Math.min(1, [1, 2, 5, 10].map((digit) => digit * power).find((round) => round >= top * 0.999));
}

// The last step with stored maps that is not after the given step.
function storedStep(run, step) {
  return run.map_steps.findLast((stored) => stored <= step) ?? 0;
}

// One head's map after a step: weights[query * n + key].
function headMap(run, n, layer, head, step) {
  const place = run.map_steps.indexOf(storedStep(run, step));
  const start = ((place * run.n_layers + layer) * run.n_heads + head) * n * n;
  const weights = new Float32Array(n * n);
  for (let i = 0; i < weights.length; i++) {
    const root = run.maps[start + i] / UNIT;
    weights[i] = root * Math.abs(root);
  }
  return { n, causal: run.causal, signed: run.signed, weights };
}

function differenceMap(first, second) {
  const weights = second.weights.map((weight, i) => weight - first.weights[i]);
  return { n: first.n, causal: first.causal && second.causal, signed: true, isDifference: true, weights };
}

// The motion of one token's q and k in one (sub-)head: points to draw and exact numbers, after every step.
function tokenMotion(run, n, layer, head, part, token) {
  const { parts, points, held, numbers, scale } = run.motion;
  const subHead = part * run.n_heads + head;
  const place = (layer * parts * run.n_heads + subHead) * n + token;
  const unit = scale[layer][subHead];
  const at = (step, axis) => points[(place * (run.n_steps + 1) + step) * 4 + axis] * unit;
  const number = (step, i) => numbers[(place * (run.n_steps + 1) + step) * 7 + i] / (i < 4 ? 1000 : 100);
  const steps = Array.from({ length: run.n_steps + 1 }, (_, step) => step);
  return {
    q: steps.map((step) => [at(step, 0), at(step, 1)]),
    k: steps.map((step) => [at(step, 2), at(step, 3)]),
    held: held[place] / 10000,
    moved: steps.map((step) => ({ q: number(step, 2), k: number(step, 3) })),
    turned: steps.map((step) => ({ q: number(step, 4), k: number(step, 5) })),
    angle: steps.map((step) => number(step, 6)),
  };
}

// Invisible characters, and those that would reorder their neighbours, are shown as a symbol or as their code point.
function visible(token) {
  return token.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0);
    if (character === "\n") return "↵";
    if (character === "\t") return "⇥";
    return `\\u{${code.toString(16)}}`;
  });
}

function label(token) {
  return visible(token).replaceAll(" ", "·");
}
