"""Orders from a topic: kept as they came, as columns, summed up, and the large ones sent on.

Messages of the topic `orders` are JSON such as {"id": 7, "shop": "north", "cents": 1250}.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
NAME_SERVERS = spark.conf.get("spark.orders.nameServers")


@dp.table
def messages() -> DataFrame:
    """Each message once, where it was in its queue, and its body as it is."""
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", NAME_SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .select("brokerName", "queueId", "queueOffset", "storeTimestamp", "body")
    )


@dp.table
def orders() -> DataFrame:
    """Those that can be read; the others stay in `messages`, and `unreadable` counts them."""
    order = f.from_json(f.col("body").cast("string"), "id bigint, shop string, cents bigint")
    return (
        spark.readStream.table("messages")
        .select("storeTimestamp", order.alias("order"))
        .where("order.id IS NOT NULL")
        .select("storeTimestamp", "order.*")
    )


@dp.materialized_view
def unreadable() -> DataFrame:
    """How many messages of each queue are no orders."""
    order = f.from_json(f.col("body").cast("string"), "id bigint")
    broken = spark.read.table("messages").where(order["id"].isNull())
    return broken.groupBy("brokerName", "queueId").count()


@dp.materialized_view
def totals() -> DataFrame:
    """Sums by shop, of all orders so far."""
    sums = f.count("*").alias("orders"), f.sum("cents").alias("cents")
    return spark.read.table("orders").groupBy("shop").agg(*sums)


dp.create_sink("large_orders", "rocketmq", {"nameServer": NAME_SERVERS, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders of 1,000 and more, to a topic, effectively once where the broker is ours."""
    return (
        spark.readStream.table("orders")
        .where("cents >= 100000")
        .select(
            f.to_json(f.struct("id", "shop", "cents")).alias("body"), f.col("shop").alias("keys")
        )
    )
