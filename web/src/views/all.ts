/** All views of the page, in the order of their tabs. */

import type { View } from "../view.ts";
import { alerts } from "./alerts.ts";
import { compare } from "./compare.ts";
import { console } from "./console.ts";
import { exporting } from "./export.ts";
import { ledger } from "./ledger.ts";
import { overview } from "./overview.ts";
import { ranks } from "./ranks.ts";
import { runs } from "./runs.ts";
import { system } from "./system.ts";
import { training } from "./training.ts";

export const VIEWS: readonly View[] = [
  runs,
  compare,
  overview,
  training,
  ranks,
  system,
  ledger,
  alerts,
  console,
  exporting,
];
