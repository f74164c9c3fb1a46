import assert from "node:assert/strict";
import { test } from "node:test";
import { zoomOf, zoomText } from "../src/chart_link.ts";
import { address, parse } from "../src/router.ts";

test("an address is parsed back to the same place, for any name of a run", () => {
  for (const run of ["demo/2026-a", "a?b#c/d e", "../..", "<img src=x>", "100%"]) {
    const place = { view: "training", run, params: new URLSearchParams({ q: "loss & more", x: "time" }) };
    const back = parse(address(place));
    assert.deepEqual([back.view, back.run, back.params.toString()], ["training", run, place.params.toString()]);
  }
});

test("no address shows all runs, and a broken address does no harm", () => {
  assert.equal(parse("").view, "runs");
  assert.equal(parse("#/").view, "runs");
  assert.equal(parse("#/run/%E0%A4%A/x").view, "x");
  assert.equal(parse("#/compare?run=a&run=b").params.getAll("run").length, 2);
});

test("the address holds a zoom with its unit", () => {
  const params = (zoom: string): URLSearchParams => new URLSearchParams({ zoom });
  assert.deepEqual(zoomOf(params(zoomText("step", [100, 900]) ?? "")), { unit: "step", range: [100, 900] });
  for (const wrong of ["", "step:9:1", "step:a:b", "other:1:2", "step:1"]) assert.equal(zoomOf(params(wrong)), null);
  assert.equal(zoomText("time", null), null);
});
