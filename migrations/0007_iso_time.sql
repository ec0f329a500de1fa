-- Times as the interface shows them: ISO 8601 in UTC with milliseconds. Stable and not immutable, because to_char is stable.
create function iso_time(moment timestamptz) returns text
language sql stable strict parallel safe
return to_char(moment at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
