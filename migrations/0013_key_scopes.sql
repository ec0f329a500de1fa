-- Stops older processes: they do not know scopes, and would let every key do everything.

-- What a key may do. Keys of older versions may do everything.
alter table api_keys
  add column scope text not null default 'full',
  -- Not valid: the rows that exist have the default, so reading them all is not worth it.
  add constraint api_keys_scope_check check (scope in ('full', 'send', 'read')) not valid;
