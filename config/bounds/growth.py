"""Each container that an object or a module keeps, and its bound.

`BOUNDED` has those that a peer can make grow, below the row of docs/limits.md that bounds them; the
page lists them there. `OTHERS` has the rest, below the reason why no peer can. Names are those that
tests/containers.py reads in the sources: `Class.attribute`, or `function()` for what remembers its
results. tests/test_containers.py fails for a container without a line, a line without its
container, and a row that the page does not have.

Add the name of a new container to a line here. If a peer can make it grow and no row fits, it
needs a bound first: a setting (`limit=` in config/settings/) or a constant (`FIXED` in
config/bounds/memory.py, `CLIENT` in config/bounds/client_limits.py).
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

#: By row or reason the names in each module, with blanks between.
Containers: TypeAlias = Mapping[str, Mapping[str, str]]

BOUNDED: Final[Containers] = {
    # --- connections
    "limits.connections": {
        # A connection waits for the save that it has asked for.
        "broker/tables/config_table.py": "_Batch._waiting",
        "broker/requests/clients/heartbeats.py": "ClientRequests._leaving",
        "broker/tables/clients.py": "ClientTable._groups_of",
        "native/sockets.pyx": "Sockets.ended Sockets.open_sockets Sockets.owed Sockets.ready",
        "remoting/listening/arrivals.py": "Arrivals._addresses Arrivals._here Arrivals._opening "
        "Arrivals._to_shake",
        "remoting/connections/inbound_budget.py": "InboundBudget._big InboundBudget._paused",
        "remoting/connections/connection_set.py": "ConnectionSet._addresses "
        "ConnectionSet._connections",
        "remoting/tls/handshakes.py": "Handshakes._of Handshakes._under_way Handshakes._waiting",
        "remoting/turns.py": "Gate._waiting Turns._jobs",
    },
    "limits.inbound_bytes": {"remoting/connections/connection.py": "Connection._aside_since"},
    "limits.outbound_bytes": {
        "native/sockets.pyx": "Socket.unsent",
        "remoting/tls/tls_transport.py": "TlsTransport._waiting",
        "remoting/turns.py": "Turns._kept",
        "store/segments/results.py": "GetResult._pinned GetResult.views QueryResult.records",
        "store/reading/search.py": "_Records.taken",
        "store/index/index_service.py": "IndexHits.log_offsets",
    },
    "http.connections": {
        "broker/monitoring/http.py": "HttpServer._connections HttpServer._idle "
        "HttpServer._reading HttpServer._served HttpServer._writing Request.headers",
        "broker/monitoring/metrics.py": "Metrics._under_way",
    },
    # --- slaves
    "slaves": {
        "broker/cluster/replication/ha_port.py": "HaPort._refused HaPort.slaves",
        "store/log/replication/feed.py": "Feed.followers",
    },
    # --- messages
    "limits.max_frame_bytes": {"broker/staging/stage_log.py": "Event.properties"},
    "store.max_message_bytes": {
        "store/log/prepared_batch.py": "PreparedBatch._records PreparedBatch._runs "
        "PreparedBatch.keys PreparedBatch.sizes PreparedBatch.tags_codes"
    },
    "appended messages": {
        "native/derive.pyx": "Deriver.places Deriver.quick Deriver.touched",
        "native/sends.pyx": "Route.touched Sends.dirty Sends.pending",
        "store/log/compiled.py": "Derived.claims",
        "store/dispatch/multi_dispatch.py": "MultiDispatchLog.pending",
        "store/log/commit_log.py": "CommitLog.copies CommitLog.pending Copied.checked",
        "store/message_store.py": "MessageStore._kept_arrivals",
        "store/queues/consume_queue_ext.py": "ConsumeQueueExt._staged",
    },
    # The ends of transactions and the intents of staged batches too, each in a queue of its own.
    "waiting sends": {
        "broker/appending/answers.py": "WhenKept._waiting",
        "native/requests.pyx": "HeldAnswers.connections HeldAnswers.counts HeldAnswers.sockets",
    },
    "limits.held_pulls": {
        "broker/appending/held_pulls.py": "_Lane._arrived _Lane._held _Lane._leaving "
        "_Lane._restated"
    },
    "limits.sql_filter_bytes": {
        "broker/tables/expressions.py": "Expressions._known",
        "broker/tables/filters.py": "FilterTable._dead FilterTable._entries FilterTable._newest",
        "store/dispatch/bit_maps.py": "FilterBitMaps._costs FilterBitMaps._topics",
    },
    "limits.timer_messages": {
        "broker/delay/timer.py": "TimerService._hidden TimerService._hours",
        "broker/delay/wheel.py": "Wheel._head Wheel._late Wheel._mixed Wheel._order Wheel._seconds "
        "_Deal._by_ms",
        "store/reading/delay_queues.py": "Look.due",
    },
    "limits.timer_recalls": {"broker/delay/timer.py": "_Hour.recalled"},
    "places of waiting messages": {"broker/delay/backlog.py": "TimerBacklog._places"},
    "limits.pending_transactions": {
        "broker/transactions/transaction_log.py": "TransactionLog._owed _Decided._newest "
        "_Decided._offsets",
        "broker/transactions/transaction_table.py": "TransactionTable._by_fingerprint "
        "TransactionTable._by_origin TransactionTable._ops TransactionTable._order "
        "TransactionTable._owed TransactionTable._passed TransactionTable._pending",
    },
    "decided transactions": {
        "broker/transactions/transaction_table.py": "TransactionTable._decided"
    },
    # --- topics, groups, queues
    "limits.max_topics": {
        "broker/tables/retries_waiting.py": "_Level.counts",
        "broker/cluster/registration/registration.py": "Registrar._changed",
        "broker/lifecycle/drain.py": "Drain._untaken _Writable.names _Writable.users",
        "broker/cluster/table_copies/config_copies.py": "ConfigCopies._gone",
        "broker/tables/config_table.py": "ConfigTable._entries ConfigTable._listed "
        "ConfigTable._unsaved _Batch.changes _Batch.told",
        "broker/tables/files/entry_text.py": "TableText._block_of TableText._blocks _Block.texts",
        "broker/tables/topics.py": "TopicTable._leaving TopicTable._ordered",
        "native/sends.pyx": "Sends.routes",
        "store/index/layout.py": "KeyHashes.prefixes",
    },
    "limits.max_queues": {
        "native/sends.pyx": "Route.queues",
        "store/disk/descriptors.py": "DescriptorCache._changed_directories DescriptorCache._open "
        "DescriptorCache.dirty DescriptorCache.rewritten",
        "store/queues/consume_queue.py": "ConsumeQueue.odd_sizes",
        "store/queues/consume_queue_ext.py": "ConsumeQueueExt.expired ConsumeQueueExt.segments",
        "store/queues/kept_ends.py": "KeptEnds._buffer",
        "store/queues/queue_table.py": "ConsumeQueueTable.leftovers ConsumeQueueTable.queues",
        "store/background/retention/queue_cleaning.py": "Left.paths",
        "store/background/retention/queue_trim.py": "QueueTrimmer._index_files "
        "QueueTrimmer._queue_files",
        "store/background/scrub/entry_scrub.py": "EntryCheck._copies EntryCheck._gathered "
        "EntryCheck._right "
        "EntryCheck.orphans EntryCheck.runs",
    },
    "limits.max_offsets": {
        "broker/cluster/table_copies/offset_copies.py": "OffsetCopies._kept",
        "broker/tables/light_queues.py": "LightConsumerOffsets._light",
        "broker/tables/offsets.py": "ConsumerOffsets._table ConsumerOffsets._taken "
        "PairIndex._groups PairIndex._topics",
        "broker/tables/files/offsets_text.py": "TableText._parts TableText.changed",
    },
    # --- clients
    "client groups": {
        "broker/requests/administration/client_list.py": "_Groups.consumers _Groups.producers",
        "broker/requests/clients/member_notifications.py": "Notifications._later "
        "Notifications._resting "
        "Notifications._changed",
        "broker/tables/clients.py": "ClientTable._consumers ClientTable._producers "
        "ClientTable._producers_by_id ConsumerGroup.ids ConsumerGroup.members Heard.groups "
        "_Groups.consumers _Groups.producers",
    },
    "limits.client_bytes": {
        "broker/tables/statements.py": "Statements.in_force Statements.topics _Topic.by_text",
        "broker/tables/clients.py": "ConsumerGroup.subscriptions Heard.restated "
        "GroupMember.subscriptions",
    },
    "limits.client_calls": {
        "broker/requests/clients/client_calls.py": "ClientCalls._held ClientCalls._by_caller",
        "broker/requests/clients/running_consumers.py": "_Answers._came",
        "remoting/connections/calls.py": "PendingCalls._waiting",
    },
    "white addresses": {"access/accounts.py": "Rules._white"},
    "rights that were asked for": {"native/guard.pyx": "Guard.allowed Guard.white"},
    "routes of plain pulls": {"native/pulls.pyx": "Pulls.routes"},
    # --- counters
    "counters": {
        "broker/broker_stats.py": "BrokerStats._consumers BrokerStats._topics ConsumerStats.pulled"
    },
    "queue counters": {"broker/broker_stats.py": "ConsumerStats.queues TopicStats.queues"},
    "rates of groups": {"broker/requests/administration/consumption.py": "GroupRates._last"},
    "remembered refusals": {
        "broker/monitoring/overview/refusals.py": "Refusals._kinds _Counts._minutes"
    },
    "traffic history": {
        "broker/requests/administration/traffic_statistics.py": "TrafficHistory._series "
        "TrafficHistory._totals "
        "_Series.samples"
    },
    "metrics.series_per_family": {
        "broker/monitoring/metrics.py": "Family.values Page._families",
        "broker/monitoring/series.py": "TopSeries._base TopSeries._deleted TopSeries._rest "
        "TopSeries._rest_keys",
    },
    # --- name server
    "limits.max_inflated_bytes": {"nameserver/name_server_requests.py": "_ReadBody.topics"},
    "limits.max_kv_bytes": {"nameserver/kv.py": "KvTable._changed KvTable._table KvText._parts"},
    "name server, changes that wait": {
        "nameserver/server.py": "NameServer._covered NameServer._unsaved NameServer._waiting"
    },
    "name server, routes": {
        "nameserver/routes.py": "BrokerGroup.addresses RouteTable._changes RouteTable._topics_of "
        "RouteTable.clusters RouteTable.groups RouteTable.live RouteTable.topics "
        "_BrokerChange.rest"
    },
    "name server, topics that went": {"nameserver/routes.py": "RouteTable._departed"},
    "remembered texts": {
        "access/accounts.py": "_signer()",
        "protocol/filters/bloom.py": "murmur3_lower()",
        "protocol/hashing.py": "_remembered_hash()",
        "protocol/message/ids.py": "_host_hex()",
        "protocol/message/properties.py": "_tags_and_words()",
        "protocol/message/record.py": "_topic_field()",
        "protocol/message/record_check.py": "topic_text()",
        "protocol/message/record_layout.py": "pack_host() unpack_host()",
    },
    # --- damage that readers come upon
    "damage reported": {
        "store/reading/damage.py": "DamageReports._passed_over DamageReports._reported",
        "store/reading/lookup.py": "EntryLookup._lost EntryLookup._searches "
        "EntryLookup._unwritten _Search.found",
    },
    # --- our own client, whose peers are brokers and name servers
    "client, routes": {
        "client/administration/audit_events.py": "AuditAnswer.events",
        "client/message_ids.py": "_Search.asked _Search.failed",
        "client/connections/pool.py": "ConnectionPool._callers ConnectionPool._connecting",
        "client/connections/routes.py": "RouteCache._asking RouteCache._brokers "
        "RouteCache._routes RouteCache._write_queues",
        "client/consuming/assignment.py": "Assignment._held Assignment._loops "
        "Assignment._releasing",
        "client/consuming/offset_store.py": "OffsetStore._changed OffsetStore._offsets",
        "client/consuming/order_lock.py": "LockResult.held LockResult.refused",
        "client/consuming/puller.py": "Puller._suggested",
        "client/producing/queue_choice.py": "QueueChooser._failed_until",
    },
    "client, messages held": {
        "client/consuming/consume_services.py": "ConcurrentConsumeService._batches "
        "OrderlyConsumeService._waiting",
        "client/consuming/process_queue.py": "ProcessQueue._held "
        "ProcessQueue._finished ProcessQueue._waiting",
        "client/consuming/puller.py": "PullResult.messages",
        "client/message.py": "Message.properties ReceivedMessage.properties",
    },
    "client, trace": {"client/producing/message_trace.py": "MessageTrace._waiting"},
    "files of accounts": {
        "native/guard.pyx": "Guard.signers",
        "access/account_service.py": "_Changed.lines",
        "access/files/account_file.py": "_Reader._names _Said.causes _Said.faults _Said.warnings",
    },
    "audited changes under way": {
        "access/audit/auditing.py": "Auditing._later",
        "access/audit/recorder.py": "Recorder._begun Recorder._events Recorder._kinds "
        "Recorder._under_way Recorder._waiting",
        "nameserver/server.py": "NameServer._audited",
    },
    "order locks": {
        "broker/requests/clients/order_locks.py": "OrderLocks._locks OrderLocks._wheel"
    },
    "lists of members": {"broker/requests/clients/member_lists.py": "MemberLists._kept"},
    "deleted topics": {
        "broker/second_step/deleted_topics.py": "DeletedTopics._newest DeletedTopics._offsets"
    },
    "waiting questions for batches": {
        "broker/staging/answers.py": "StageAnswers._by_batch StageAnswers._by_deadline "
        "StageAnswers._done_ends StageAnswers._due"
    },
    "limits.stage_state_bytes": {
        "broker/staging/stage_table.py": "Decision.names Decision.others Decision.own "
        "Decision.topics "
        "Intent.own "
        "Stage.chunks Stage.missing StageTable.open StageTable.stages StageTable._touched",
        "broker/staging/publish.py": "Publisher._turns",
        "broker/staging/finished.py": "FinishedBatches._dear FinishedBatches.changed "
        "FinishedBatches.forgotten FinishedBatches.queries",
        "broker/staging/finished_batches.py": "StageFile._log StageFile._saved",
    },
    "stages given up": {
        "broker/staging/stage_table.py": "StageTable._dropped StageTable._dropped_unseen"
    },
    "beginnings of groups": {"broker/broker_stats.py": "BrokerStats._began"},
    "queues watched for groups that stand": {
        "broker/tables/stuck_queues.py": "StuckQueues._next StuckQueues._seen"
    },
}

OTHERS: Final[Containers] = {
    "one a kind of error": {
        "broker/cluster/replication/ha_port.py": "HaPort.refusals",
        "broker/cluster/replication/master_link.py": "MasterLink.refusals",
    },
    "ends of the log with their times, by a constant of ages.py": {
        "store/log/replication/ages.py": "EndTimes._ends EndTimes._times"
    },
    "one a table that slaves copy, by a list in replica_tables.py": {
        "broker/cluster/table_copies/table_sync.py": "TableSync._versions TableSync._waiting "
        "TableSync._whole",
        "broker/requests/administration/replica_tables.py": "ReplicaTableRequests._sources",
    },
    "one a listener, a port or a task, by configuration": {
        "store/disk/store_place.py": "PlaceWatch._directories",
        "broker/lifecycle/daemon.py": "Daemon._undo",
        "broker/cluster/registration/master_address.py": "MasterAddress._said "
        "MasterAddress._unasked",
        "broker/cluster/registration/registration.py": "Registrar._links Registrar._tasks "
        "Registrar.errors Registrar.registered Registrar._namesakes",
        "broker/background/scheduler.py": "Scheduler._tasks",
        "remoting/listening/server.py": "Listening._sockets Listening._tasks Listening.ports",
        "shards/supervisor_process.py": "_Process._shards",
        "shards/supervisor.py": "Supervisor._keepers Supervisor.shards",
        "store/disk/lock.py": "_open_directories",
    },
    "one a delay level": {
        "broker/tables/retries_waiting.py": "RetriesWaiting._levels",
        "broker/delay/delivery_progress.py": "DurableProgress._positions DurableProgress._saved",
        "broker/delay/delay_service.py": "ScheduleMessageService._levels",
        "store/queues/delay_levels.py": "DelayLevels._delays_ms",
    },
    "one a request code, reason or kind that the code knows": {
        "broker/second_step/second_step.py": "SecondStepCounts.dropped SecondStepCounts.moved "
        "SecondStepCounts.without_topic",
        "access/audit/recorder.py": "Recorder.counts",
        "access/control.py": "AccessControl.refused",
        "broker/monitoring/http.py": "HttpServer._routes HttpServer.requests",
        "broker/core.py": "BrokerCore._further",
        "broker/routing/router.py": "Router._handlers",
        "broker/broker_stats.py": "BrokerStats._requests BrokerStats._served "
        "BrokerStats.client_calls",
        "nameserver/name_server_requests.py": "Requests._handlers",
        "nameserver/server.py": "NameServer._request_counts NameServer._shown "
        "NameServerCounts.requests NameServerOptions.shown",
        "native/sends.pyx": "Sends.not_plain",
        "remoting/connection_stats.py": "ServerStats.closed TlsStats.failed",
        "store/disk/store_health.py": "Health._reasons",
        "store/store_stats.py": "StoreStats.damage_found StoreStats.put_failures",
        "store/background/retention/disposal.py": "DeletionCounts.segment_bytes "
        "DeletionCounts.segments",
    },
    "a hundred codes at most are told": {"broker/routing/router.py": "Router._unsupported"},
    "what the wiring puts there at the start": {
        "broker/messages/pull.py": "PullProcessor._judging",
        "broker/monitoring/health_checks.py": "HealthChecks._checks",
        "broker/monitoring/metrics.py": "Metrics._sections Metrics._tops Metrics.section_failures "
        "Page._base Page._tops",
        "broker/tables/config_table.py": "ConfigTable._observers",
        "native/sockets.pyx": "Sockets.raw",
        "shards/child.py": "Child._environ",
    },
    "one a type, a size or a grammar that the code knows": {
        "broker/tables/expressions.py": "Expressions._loading",
        "protocol/checksum.py": "_crc32c_function()",
        "protocol/filters/sql_filter.py": "_parser()",
        "protocol/filters/sql_values.py": "readers() sameness()",
        "protocol/hashing.py": "_power()",
        "protocol/headers/fields.py": "fields_of()",
    },
    "as many places as the histogram has": {
        "broker/broker_stats.py": "Buckets.counts",
        "native/sends.pyx": "Sends.size_bounds",
        "store/store_stats.py": "Histogram.counts Histogram.slow",
    },
    "the last ten minutes in samples": {
        "store/store_stats.py": "StoreStatsService._samples",
        "broker/monitoring/overview/growth.py": "RecentGrowth._samples",
    },
    "the accounts' files, which the operator writes": {"access/accounts.py": "Rules.accounts"},
    "a key of ours a connection": {"remoting/connections/connection.py": "Connection.context"},
    "callers of ours that wait for room": {
        "remoting/connections/connection.py": "Connection._drain_waiters"
    },
    "the files of the store, whose number the disk and retention decide": {
        "store/disk/disk_watch.py": "DiskWatch.ratios",
        "store/index/index_service.py": "IndexService._repaired IndexService._sealed "
        "IndexService._spare "
        "IndexService.damaged IndexService.foreign",
        "store/log/commit_log.py": "CommitLog.segments",
        "store/queues/consume_queue_ext.py": "ConsumeQueueExt.unfinished",
        "store/queues/queue_table.py": "ConsumeQueueTable.foreign",
        "store/background/retention/disposal.py": "SegmentDisposal._lingering "
        "SegmentDisposal._waiting",
        "store/background/retention/retention.py": "Retention._times",
        "store/background/retention/triggers.py": "Verdict.logs",
        "store/segments/allocate.py": "AllocateMappedFileService._failed "
        "AllocateMappedFileService._ready AllocateMappedFileService._requested",
        "store/segments/mapped_file_queue.py": "MappedFileQueue.foreign MappedFileQueue.unfinished",
    },
    "what a disk has damaged of one file or segment, with bounds of its own": {
        "store/background/scrub/index_scrub.py": "_NOTHING_KNOWN IndexFileCheck.links "
        "IndexFileCheck.slots",
        "store/background/scrub/index_entries.py": "IndexEntryCheck._expected IndexEntryCheck._fds "
        "IndexEntryCheck._found IndexEntryCheck.wrong",
        "store/background/scrub/queue_repair.py": "Findings.gaps Findings.orphans Findings.runs "
        "QueueRepair._findings QueueRepair._held",
        "store/background/scrub/scrub.py": "Scrub._counted_entries Scrub._known_entries "
        "Scrub._pass Scrub._reported Scrub._wrong_index",
        "store/reading/damage.py": "ScrubRequests._asked",
    },
    "buffers of the transient pool, by configuration": {
        "store/segments/transient_pool.py": "TransientStorePool._free TransientStorePool._memories"
    },
    "steps of the machine's clock": {"store/disk/steady_time.py": "SteadyTime._held"},
    "a report of an operator's command, made once": {
        "broker/delay/export.py": "ExportReport.exported ExportReport.unusable "
        "TimerExport._recalled TimerExport._spans",
        "store/background/retention/forecast.py": "_Look._notes",
    },
    "what the program that uses the client asks for": {
        "client/public.py": "__all__",
        "client/loop_thread.py": "LoopThread._inherited",
        "client/consuming/offset_store.py": "_held",
        "client/administration/asked_brokers.py": "AskedBrokers.slaves "
        "AskedBrokers._addresses AskedBrokers.unanswered",
        "client/admin.py": "Admin._admin_ports Admin._checked Admin.slaves_read",
        "client/administration/group_lag.py": "GroupQuestions._addresses "
        "GroupQuestions._of_rocketmq GroupQuestions._tables GroupQuestions.unanswered",
        "client/connections/background.py": "FirstAlone._done FirstAlone._first "
        "TaskOwner._tasks TaskOwner.failures",
        "client/administration/overview.py": "GroupMembers.consumers GroupMembers.producers "
        "Told.runtime Told.settings",
        "client/connections/asking_session.py": "AskingSession._silent",
        "client/connections/routes.py": "RouteCache._name_servers RouteCache._under_way "
        "RouteCache.unanswered",
        "client/connections/session.py": "Session._members Session._served",
        "client/consuming/consumer_state.py": "ConsumerState.counters ConsumerState.subscriptions",
        "client/consuming/pull_consumer.py": "PullConsumer._subscriptions",
        "client/consuming/push_consumer.py": "PushConsumer._subscriptions",
        "client/producing/producer.py": "Producer._topics",
        "client/producing/queue_choice.py": "QueueChooser._next",
        "client/producing/request_reply.py": "Replies._waiting",
        "client/producing/staging.py": "StageClient._addresses",
    },
}
