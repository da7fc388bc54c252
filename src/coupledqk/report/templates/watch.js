// Requests the dynamic part of the page every two seconds, and replaces it when it has changed.
const SECONDS_BETWEEN_UPDATES = 2;
const part = document.getElementById("part");
const connection = document.getElementById("connection");
const patience = connection.textContent;
let shown = null;

async function update() {
  const answer = await fetch("part").then((response) => response.json()).catch(() => null);
  connection.textContent = answer === null ? "The server does not respond: is `coupledqk watch` still running? The page will keep trying." : (answer.error ?? patience);
  connection.classList.toggle("caution", Boolean(answer === null || answer.error));
  if (answer?.html && answer.html !== shown) {
    shown = answer.html;
    part.innerHTML = answer.html;
    part.querySelectorAll("svg.chart").forEach(makeReadable);
  }
  setTimeout(update, 1000 * SECONDS_BETWEEN_UPDATES);
}

update();
