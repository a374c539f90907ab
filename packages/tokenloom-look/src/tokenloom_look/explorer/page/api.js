// Sends requests to the server and reports its errors.

/** An error response with message and hint; status 0 if the server did not answer. */
export class AskError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint ?? "";
  }
}

/** The token for all requests: passed once in the address, then stored for other tabs of this server. */
const given = document.querySelector("meta[name=token]").content;
if (given) {
  localStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.hash);
}
const token = given || localStorage.getItem("token");

/** Dispatches `gone` when the server stops answering and `back` when it answers again. */
export const server = new EventTarget();
let isGone = false;

/** Requests `/api/NAME`; parameters that are null or "" are skipped. Throws AskError, or AbortError if aborted. */
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
      throw new AskError(answer.status, "the server's answer is not valid JSON", "");
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

/** Returns whether an error is due to an aborted request. */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}
