// Draws the curves of a report, by the Chart that stands above. Without scripts, sentences remain.
for (const node of document.querySelectorAll(".curve")) {
  const { title, unit, share, isTime, x, mean, low, high } = JSON.parse(node.querySelector("script").textContent);
  const chart = new Chart({ title, unit, share, xTitle: "frames", sync: isTime ? "time" : "frames",
    ...(isTime ? OVER_TIME : {}) });
  node.append(chart.figure);
  node.querySelector("p").remove();
  chart.setData(x, { mean, low, high });
}
