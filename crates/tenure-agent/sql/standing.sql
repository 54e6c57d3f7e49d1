-- What a login role lacks of what privileges.sql grants; an agent with schedules or alerts needs all of it. Nothing is
-- named that must exist: in a schema that must not be used even the name of a table is an error.
with schema as (select to_regnamespace('tenure_agent') as oid),
     lacking as (
    select 'usage on schema tenure_agent' as what from schema s where not has_schema_privilege(s.oid, 'usage')
    union all
    select privilege || ' on tenure_agent.' || c.relname
        from schema s join pg_class c on c.relnamespace = s.oid and c.relkind = 'r'
            cross join unnest(array['select', 'insert', 'update', 'delete']) privilege
        where has_schema_privilege(s.oid, 'usage') and not has_table_privilege(c.oid, privilege)
          and (c.relname <> 'migration' or privilege = 'select')
    union all
    select 'execute on tenure_agent.' || p.proname || '()'
        from schema s join pg_proc p on p.pronamespace = s.oid
        where has_schema_privilege(s.oid, 'usage') and not has_function_privilege(p.oid, 'execute'))
select jsonb_build_object('user', current_user, 'exists', (select oid is not null from schema),
    'may_create', has_database_privilege(current_database(), 'create'),
    'missing', coalesce((select jsonb_agg(what order by what) from lacking), '[]'))
