// Shows the value under the pointer. The page is complete without this script.
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg");
  const { x, points } = JSON.parse(chart.querySelector("script").textContent);
  const made = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    svg.append(node);
    return node;
  };
  let rule, here, tip;
  const leave = () => [rule, here, tip].forEach((node) => node && node.remove());
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    leave();
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const near = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    rule = made("line", { class: "rule", x1: near[0], x2: near[0], y1: 10, y2: svg.viewBox.baseVal.height - 38 });
    here = made("circle", { class: "here", cx: near[0], cy: near[1], r: 4 });
    tip = document.createElement("div");
    tip.className = "tip";
    const [value, place] = [near[3], near[2]].map((number) =>
      number.toLocaleString("en", { maximumSignificantDigits: 5 }));
    tip.textContent = `${value} at ${place} ${x}`;
    chart.append(tip);
    const half = tip.offsetWidth / 2;
    const left = (near[0] / svg.viewBox.baseVal.width) * box.width;
    tip.style.left = `${Math.min(Math.max(left, half), box.width - half)}px`;
  });
}
