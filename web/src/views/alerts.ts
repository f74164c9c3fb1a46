/** Alerts of a run: active and past alerts, each with its chart, remedy and actions. */

import "./alerts.css";
import { type AlertRow, changeAlert, reason } from "../api.ts";
import { fill, h, setText, show } from "../dom.ts";
import { ABSENT, ago, duration, moment } from "../format.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import type { Mounted, Page, View } from "../view.ts";
import { empty, failure, segmented, severityMark, skeleton } from "../widgets.ts";
import { Detail } from "./alert_detail.ts";
import { byUrgency, isOpen, matching, stateWord } from "./alert_order.ts";

class AlertsView implements Mounted {
  private readonly list = h("ul", { class: "alert-list", attrs: { "aria-label": "Alerts" } });
  private readonly notice = h("p", { class: "soft alert-notice", attrs: { role: "status" } });
  private readonly counts = segmented(
    "Which alerts",
    [
      ["active", "Active"],
      ["history", "History"],
    ],
    "active",
    (value) => this.page.router.param({ show: value, alert: null }),
  );
  private readonly search = h("input", {
    attrs: { type: "search", placeholder: "Find an alert", "aria-label": "Find an alert" },
    on: { input: () => this.page.router.param({ q: this.search.value }) },
  });
  private readonly test = h(
    "button",
    {
      class: "button",
      attrs: { type: "button" },
      on: { click: () => void this.order(null, "test", 0) },
    },
    "Send a test notification",
  );
  private readonly detail: Detail;
  private readonly stops: (() => void)[] = [];
  private alerts: AlertRow[] | null = null;
  private drawn = "";

  constructor(
    root: HTMLElement,
    private readonly page: Page,
    private readonly run: RunModel,
  ) {
    this.detail = new Detail(
      run,
      page.server.capabilities.actions,
      (alert, action, seconds) => void this.order(alert, action, seconds),
    );
    fill(
      root,
      h("div", { class: "toolbar" }, this.counts.element, h("div", { class: "search" }, this.search), this.test),
      this.notice,
      h("div", { class: "alert-split" }, this.list, this.detail.element),
    );
    show(this.notice, false);
    const offer = (): void => {
      show(this.test, page.server.capabilities.actions && run.live.status?.state === "running");
      this.detail.follow();
    };
    offer();
    this.stops.push(run.live.listen({ status: offer }));
    fill(this.list, skeleton(3));
    this.stops.push(
      run.names.listen(() => this.detail.again()),
      run.alerts.listen(() => this.arrived()),
    );
  }

  update(place: Place): void {
    if (this.search.value !== (place.params.get("q") ?? "")) this.search.value = place.params.get("q") ?? "";
    this.draw();
  }

  stop(): void {
    for (const stop of this.stops) stop();
    this.detail.stop();
  }

  private arrived(): void {
    const { value, error } = this.run.alerts;
    if (value) this.alerts = value.alerts;
    else if (error)
      fill(
        this.list,
        failure(error, () => this.run.alerts.refresh()),
      );
    show(this.detail.element, this.alerts !== null);
    this.draw();
  }

  private draw(): void {
    if (!this.alerts) return;
    const { params } = this.page.router.place;
    const open = byUrgency(this.alerts.filter(isOpen));
    const history = params.get("show") === "history" || (params.get("show") === null && !open.length);
    const shown = matching(history ? this.alerts : open, params.get("q") ?? "");
    const chosen = shown.find((alert) => alert.alert === params.get("alert")) ?? shown[0] ?? null;
    const key = JSON.stringify([shown, chosen?.alert, history]);
    if (key === this.drawn) return;
    this.drawn = key;
    this.counts.set(history ? "history" : "active");
    this.counts.element.querySelectorAll("button").forEach((button, place) => {
      setText(button, place ? `History ${this.alerts?.length ?? 0}` : `Active ${open.length}`);
    });
    fill(this.list, shown.length ? shown.map((alert) => this.row(alert, alert === chosen)) : this.nothing(history));
    this.detail.show(chosen);
  }

  private nothing(history: boolean): HTMLElement {
    if (this.page.router.place.params.get("q")) return empty("No matching alert", "Try fewer words.");
    return history
      ? empty("No alerts so far", "Rules are checked while the run is recorded; alerts appear here.")
      : empty("No active alerts", "Past alerts are in the history.");
  }

  private row(alert: AlertRow, chosen: boolean): HTMLElement {
    const now = this.run.live.now();
    const lasted = alert.since === null || alert.until === null ? ABSENT : duration(alert.until - alert.since);
    const when =
      alert.since === null
        ? ABSENT
        : alert.until === null
          ? ago(Math.max(0, now - alert.since))
          : moment(alert.since, now);
    return h(
      "li",
      {},
      h(
        "button",
        {
          class: `alert-row ${alert.severity} ${isOpen(alert) ? alert.state : "over"}`,
          attrs: { type: "button", "aria-current": chosen ? "true" : null, "data-alert": alert.alert },
          on: { click: () => this.page.router.param({ alert: alert.alert }) },
        },
        h(
          "span",
          { class: "alert-head" },
          severityMark(alert.severity),
          h("strong", { class: "alert-rule" }, alert.rule),
          h(
            "span",
            { class: `chip state-${alert.state}` },
            stateWord(alert, this.run.live.status?.state === "running"),
          ),
        ),
        h("span", { class: "alert-text" }, alert.text),
        h(
          "span",
          { class: "alert-when soft num" },
          when,
          isOpen(alert) ? null : ` · for ${lasted}`,
          alert.step === null ? null : ` · step ${alert.step}`,
          alert.rank === null ? null : ` · rank ${alert.rank}`,
        ),
      ),
    );
  }

  private async order(alert: AlertRow | null, action: "ack" | "silence" | "test", seconds: number): Promise<void> {
    const body = {
      run: this.run.key,
      action,
      ...(alert ? { alert: alert.alert, rule: alert.rule } : {}),
      ...(seconds ? { seconds } : {}),
    };
    try {
      this.showNotice((await changeAlert(body)).text);
      this.run.alerts.refresh();
    } catch (error) {
      this.showNotice(reason(error));
    }
  }

  private showNotice(text: string): void {
    show(this.notice, true);
    fill(this.notice, text);
    this.page.announce(text);
  }
}

export const alerts: View = {
  name: "alerts",
  title: "Alerts",
  of: "run",
  hidden: (server) => !server.capabilities.alerts,
  mount(root: HTMLElement, page: Page): Mounted {
    const { run } = page;
    if (!run) return {};
    return new AlertsView(root, page, run);
  },
};
