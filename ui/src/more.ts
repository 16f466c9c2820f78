/** All pages but the list, and what opens over them. */
import Approvals from "./pages/Approvals.svelte";
import Capsule from "./pages/Capsule.svelte";
import Check from "./pages/Check.svelte";
import Compare from "./pages/Compare.svelte";
import Health from "./pages/Health.svelte";
import Locks from "./pages/Locks.svelte";
import Orchestrators from "./pages/Orchestrators.svelte";
import Queues from "./pages/Queues.svelte";
import Run from "./pages/Run.svelte";
import Schedules from "./pages/Schedules.svelte";
import Start from "./pages/Start.svelte";

export { default as Bulk } from "./shell/Bulk.svelte";
export { default as Palette } from "./shell/Palette.svelte";
export { default as SignIn } from "./shell/SignIn.svelte";
export { default as Settings } from "./shell/Settings.svelte";

export const pages = {
  approvals: Approvals,
  capsule: Capsule,
  check: Check,
  compare: Compare,
  health: Health,
  locks: Locks,
  orchestrators: Orchestrators,
  queues: Queues,
  runs: Run,
  schedules: Schedules,
  start: Start,
} as Record<string, unknown>;
