// The Go peer of the interop tests. Its command line and its output are those of every other peer:
// see tests/interop/README.md.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	namesrv, topic, group, modes, mode, prefix, producer, tag, keys, rejectFirst string
	count, intervalMs, retrySeconds, timeout                        int
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
	flags.StringVar(&o.keys, "keys", "no", "yes: each body is its message's key too")
	flags.StringVar(&o.rejectFirst, "reject-first", "no", "yes: consume at the second delivery only")
	flags.IntVar(&o.count, "count", 0, "messages; when consuming, 0: until stopped")
	flags.IntVar(&o.intervalMs, "interval-ms", 0, "pause between synchronous sends")
	flags.IntVar(&o.retrySeconds, "retry-seconds", 0, "how long a failing send is tried again")
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

func main() {
	rlog.SetLogLevel("error")
	o := parse(os.Args[2:])
	switch os.Args[1] {
	case "produce":
		produce(o)
	case "consume":
		consume(o)
	default:
		log.Fatalf("produce or consume, not %s", os.Args[1])
	}
}
