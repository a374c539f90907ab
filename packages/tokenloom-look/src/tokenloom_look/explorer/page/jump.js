// The box for jumping to a position, step, document or record; the server parses its text.

import { ask, isAbort } from "./api.js";
import { go } from "./routes.js";
import { hinted } from "./states.js";
import { make } from "./dom.js";

export function startJump() {
  const form = document.getElementById("jump");
  const input = document.getElementById("jump-to");
  const error = document.getElementById("jump-error");
  let controller = null;

  const clear = () => {
    error.replaceChildren();
    input.removeAttribute("aria-invalid");
  };
  const tell = (failure) => {
    error.replaceChildren(make("bdi", {}, failure.message), ...(failure.hint ? [hinted(failure.hint)] : []));
    input.setAttribute("aria-invalid", "true");
    input.focus();
    input.select();
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    controller?.abort();
    const value = input.value.trim();
    if (!value) {
      input.focus();
      return;
    }
    controller = new AbortController();
    try {
      const { view, parameters } = await ask("jump", { what: "auto", value }, controller.signal);
      clear();
      input.value = "";
      input.blur();
      go(view, parameters);
    } catch (failure) {
      if (!isAbort(failure)) tell(failure);
    }
  });
  input.addEventListener("input", clear);
  addEventListener("hashchange", clear);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    controller?.abort();
    clear();
    input.value = "";
    document.getElementById("view").focus();
  });
}
