import { nothing } from "./states.js";
export class WatchView {
  constructor() {
    this.title = "Watch";
    this.element = nothing("Nothing is at work here.", "Start `tokenloom explore` with the folder of a preprocess job.");
  }
}
