// Two runs side by side.
import { nothing } from "./states.js";
export class CompareView {
  constructor() {
    this.title = "Compare";
    this.element = nothing("There is no second run.", "Start `tokenloom explore run.toml --compare other/run.toml` to see two runs side by side.");
  }
}
