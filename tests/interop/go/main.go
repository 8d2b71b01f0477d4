// The Go peer of the interop tests. Its command line and its output are those of every other peer:
// see tests/interop/README.md.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	namesrv, topic, group, modes, mode, prefix, producer, tag, sql, property string
	keys, rejectFirst, broadcast, trace, accessKey, secretKey                string
	count, intervalMs, retrySeconds, timeout, delayLevel                     int
}

func parse(arguments []string) options {
	var o options
	flags := flag.NewFlagSet("peer", flag.ExitOnError)
	flags.StringVar(&o.namesrv, "namesrv", "", "name server host:port")
	flags.StringVar(&o.topic, "topic", "", "topic")
	flags.StringVar(&o.group, "group", "peers", "producer or consumer group")
	flags.StringVar(&o.modes, "modes", "sync", "sync,async,oneway,batch: the count is divided")
	flags.StringVar(&o.mode, "mode", "concurrent", "concurrent or orderly")
	flags.StringVar(&o.prefix, "prefix", "m", "first part of the bodies")
	flags.StringVar(&o.producer, "producer", "go", "second part of the bodies")
	flags.StringVar(&o.tag, "tag", "", "tag to send with, or to subscribe to")
	flags.StringVar(&o.sql, "sql", "", "SQL92 expression to subscribe with")
	flags.StringVar(&o.property, "property", "", "name of a property that is each message's number")
	flags.StringVar(&o.broadcast, "broadcast", "no", "yes: each consumer gets each message")
	flags.StringVar(&o.trace, "trace", "no", "yes: the client traces what it does")
	flags.StringVar(&o.keys, "keys", "no", "yes: each body is its message's key too")
	flags.StringVar(&o.rejectFirst, "reject-first", "no", "yes: consume at the second delivery only")
	flags.StringVar(&o.accessKey, "access-key", "", "account that requests are signed for")
	flags.StringVar(&o.secretKey, "secret-key", "", "its secret")
	flags.IntVar(&o.count, "count", 0, "messages; when consuming, 0: until stopped")
	flags.IntVar(&o.intervalMs, "interval-ms", 0, "pause between synchronous sends")
	flags.IntVar(&o.retrySeconds, "retry-seconds", 0, "how long a failing send is tried again")
	flags.IntVar(&o.delayLevel, "delay-level", 0, "delay level of the messages")
	flags.IntVar(&o.timeout, "timeout", 60, "seconds")
	if err := flags.Parse(arguments); err != nil {
		log.Fatal(err)
	}
	return o
}

var output sync.Mutex

// say prints one JSON object a line, unbuffered.
func say(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// wait returns when the program is told to stop, when there is enough, or when --timeout has passed.
func wait(o options, enough <-chan struct{}) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	select {
	case <-enough:
		time.Sleep(300 * time.Millisecond) // the last listener returns, its offset is stored too
	case <-told:
	case <-time.After(time.Duration(o.timeout) * time.Second):
	}
}

// tracing is what a client is told to trace with; Java's clients trace to the same topic.
func tracing(o options) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName: o.group, Access: primitive.Local, NamesrvAddrs: []string{o.namesrv}}
}

// credentials are those of the account; without an access key nothing is signed.
func credentials(o options) primitive.Credentials {
	return primitive.Credentials{AccessKey: o.accessKey, SecretKey: o.secretKey}
}

func main() {
	rlog.SetLogLevel("error")
	o := parse(os.Args[2:])
	switch os.Args[1] {
	case "produce":
		produce(o)
	case "consume":
		consume(o)
	case "pull":
		pull(o)
	case "transact":
		transact(o)
	case "request":
		request(o)
	case "reply":
		reply(o)
	default:
		log.Fatalf("produce, consume, pull, transact, request or reply, not %s", os.Args[1])
	}
}
