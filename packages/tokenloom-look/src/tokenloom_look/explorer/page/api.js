// What the server is asked, and what it says if it cannot answer.

/** An answer that is none: what is wrong, and what to do. Status 0: nobody answered. */
export class AskError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint ?? "";
  }
}

/** What every question has to have: handed over once, in the address, and kept for the other tabs of this server. */
const given = document.querySelector("meta[name=token]").content;
if (given) {
  localStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.hash);
}
const token = given || localStorage.getItem("token");

/** Tells `gone` and `back` of the server: an event target, so that whoever failed may try again. */
export const server = new EventTarget();
let isGone = false;

/** Asks `/api/NAME`; parameters that are null or "" are left out. Throws AskError, or AbortError once the signal says so. */
export async function ask(name, parameters = {}, signal = undefined) {
  const asked = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(asked.map(([key, value]) => [key, String(value)])).toString();
  let answer, body;
  try {
    answer = await fetch(`api/${name}${query && "?"}${query}`, { signal, headers: { Authorization: `Bearer ${token}` } });
    body = await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (answer !== undefined && !(error instanceof TypeError))
      throw new AskError(answer.status, "the answer of the server cannot be read", "");
    tell(true);
    throw new AskError(0, "the server does not answer", "is `tokenloom explore` still running in its terminal?");
  }
  tell(false);
  if (!answer.ok) throw new AskError(answer.status, body.error ?? "the server refused", body.hint);
  return body;
}

function tell(gone) {
  if (gone === isGone) return;
  isGone = gone;
  server.dispatchEvent(new Event(gone ? "gone" : "back"));
}

/** Whether an error only says that nobody waits for the answer any more. */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}
