-- Times as the interface shows them: ISO 8601 in UTC with milliseconds. Stable only, as to_char is by what it may be asked for.
create function iso_time(moment timestamptz) returns text
language sql stable strict parallel safe
return to_char(moment at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
