/** What a caller wrote, as an error repeats it: whoever sends 36 MB in one field must not get an answer of 36 MB. */
const maxGiven = 100;

export function cutGiven(text: string): string {
  return text.length <= maxGiven ? text : `${text.slice(0, maxGiven).toWellFormed()}…`;
}
